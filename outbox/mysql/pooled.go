package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"

	"github.com/weirdb/weir/internal/outbox/pooled"
	"github.com/weirdb/weir/outbox"
)

// Check implements [outbox.Checker]: two sessions are two threads of the server, by
// the numbers that the server itself lists, and each stays the one that it is
// while the other is in a transaction.
func (s *Store) Check(ctx context.Context) error {
	err := s.pooled.Run(ctx, func(ctx context.Context) (pooled.Session, error) {
		conn, err := s.db.Conn(ctx)
		if err != nil {
			return nil, err
		}
		return compared{&session{Conn: conn, store: s}}, nil
	})
	if err != nil {
		return s.fail("check the sessions of", err)
	}
	return nil
}

// compared is a session that is compared with another one.
type compared struct{ c *session }

// hiddenTries is how often a session looks for its own statement in the server's list. The
// server leaves out the text of a thread that another reader of the list holds at that moment.
const hiddenTries = 100

// Number is the session's, which must be the one that the server lists with this
// statement.
func (c compared) Number(ctx context.Context) (id int64, err error) {
	for range hiddenTries {
		var listed sql.NullInt64
		never := fmt.Sprintf("weir-%016x", rand.Uint64())
		err = c.c.QueryRowContext(ctx, "SELECT CONNECTION_ID(), (SELECT MAX(ID) FROM information_schema.PROCESSLIST WHERE INFO LIKE '%"+never+"%')").Scan(&id, &listed)
		switch {
		case err != nil:
			return 0, err
		case !listed.Valid: // hidden
		case listed.Int64 != id:
			return 0, outbox.ErrPooled
		default:
			return id, nil
		}
	}
	return 0, outbox.ErrPooled
}

func (c compared) Begin(ctx context.Context) (pooled.Tx, error) {
	tx, err := c.c.BeginTx(ctx, nil)
	return comparedTx{tx}, err
}

func (c compared) Close() { c.c.discard() }

type comparedTx struct{ tx *sql.Tx }

func (t comparedTx) Number(ctx context.Context) (id int64, err error) {
	err = t.tx.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&id)
	return id, err
}

func (t comparedTx) Rollback(context.Context) error { return t.tx.Rollback() }
