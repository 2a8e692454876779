package mysql

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/weirdb/weir/internal/outbox/pooled"
	"github.com/weirdb/weir/outbox"
)

// Check implements [outbox.Checker]: two sessions must be two threads of the server, by the
// ids in its process list, and each must keep its thread while the other is in a
// transaction. What it misses, a leader finds at the next heartbeat that another session than
// that of its lock answers.
func (s *Store) Check(ctx context.Context) error {
	err := s.pooled.Run(ctx, nil, func(ctx context.Context) (pooled.Session, error) {
		conn, err := s.db.Conn(ctx)
		if err != nil {
			return nil, err
		}
		return poolCheckSession{&session{Conn: conn, pool: s.pool}}, nil
	})
	if err != nil {
		return s.fail("check the sessions of", err)
	}
	return nil
}

// poolCheckSession implements [pooled.Session].
type poolCheckSession struct{ c *session }

// hiddenTries is how often a session looks for its own statement in the process list. The server
// omits the text of a thread while another session reads its entry.
const hiddenTries = 100

// Number returns the connection id, which must be the one that the process list shows for the
// session's own statement. It uses SHOW PROCESSLIST because MySQL 9 cannot always show
// information_schema.PROCESSLIST: see errConvert.
func (c poolCheckSession) Number(ctx context.Context) (id int64, err error) {
	if err := c.c.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&id); err != nil {
		return 0, err
	}
	for range hiddenTries {
		switch listed, err := c.listedID(ctx); {
		case err != nil:
			return 0, err
		case listed == 0: // hidden
		case listed != id:
			return 0, outbox.ErrPooled
		default:
			return id, nil
		}
	}
	return 0, outbox.ErrPooled
}

// listedID returns the id that the process list shows for its own statement; 0 if it is missing.
func (c poolCheckSession) listedID(ctx context.Context) (id int64, err error) {
	never := fmt.Sprintf("weir-%016x", rand.Uint64())
	rows, err := c.c.QueryContext(ctx, "SHOW /* "+never+" */ PROCESSLIST")
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return 0, err
	}
	const info = 7 // the column of the text
	values := make([]sql.RawBytes, max(len(names), info+1))
	into := make([]any, len(names))
	for i := range into {
		into[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return 0, err
		}
		if bytes.Contains(values[info], []byte(never)) {
			if id, err = strconv.ParseInt(string(values[0]), 10, 64); err != nil {
				return 0, fmt.Errorf("the number of a session: %w", err)
			}
		}
	}
	return id, rows.Err()
}

func (c poolCheckSession) Begin(ctx context.Context) (pooled.Tx, error) {
	tx, err := c.c.BeginTx(ctx, nil)
	return poolCheckTx{tx}, err
}

func (c poolCheckSession) Close() { c.c.discard() }

type poolCheckTx struct{ tx *sql.Tx }

func (t poolCheckTx) Number(ctx context.Context) (id int64, err error) {
	err = t.tx.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&id)
	return id, err
}

func (t poolCheckTx) Rollback(context.Context) error { return t.tx.Rollback() }
