package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/outbox"
)

// mark is the set of transactions that held ROW EXCLUSIVE on the outbox table at one time:
// those that may have taken a number and not yet committed its row.
//
// PREPARE TRANSACTION passes the locks of a transaction to a dummy process, which has the
// transaction's virtual id on newer servers and another id on older ones. So when the last
// transaction of the mark is gone, the ones that are prepared at that time are waited for as
// well: they may include one of the mark.
type mark struct {
	running  map[string]struct{} // virtual transaction ids
	prepared map[string]struct{} // nil until the running ones are gone
}

// holdersText selects the transactions that hold the lock of an INSERT, on the table or on
// one of its partitions. Stronger locks do not matter: a transaction that inserts holds this
// one as well, and a vacuum, which holds a stronger one for hours, does not insert. A
// transaction that waits for the lock has no number yet.
func holdersText(n names) string {
	return `SELECT DISTINCT l.virtualtransaction, l.pid IS NULL FROM pg_catalog.pg_locks AS l
	WHERE l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.granted
	AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
	AND l.relation IN (
		SELECT to_regclass(` + literal(n.q("")) + `)::oid
		UNION ALL SELECT inhrelid FROM pg_catalog.pg_inherits WHERE inhparent = to_regclass(` + literal(n.q("")) + `))`
}

// holders are the transactions that hold the lock at one time.
type holders struct{ running, prepared map[string]struct{} }

func (l *lease) holders(ctx context.Context) (h holders, err error) {
	err = l.do(ctx, "look who writes to", &l.read, func(c *pgx.Conn) error {
		h = holders{running: map[string]struct{}{}, prepared: map[string]struct{}{}}
		rows, err := c.Query(ctx, l.sql.holders)
		if err != nil {
			return err
		}
		var id string
		var prepared bool
		_, err = pgx.ForEachRow(rows, []any{&id, &prepared}, func() error {
			if prepared {
				h.prepared[id] = struct{}{}
			} else {
				h.running[id] = struct{}{}
			}
			return nil
		})
		return err
	})
	return h, err
}

// Mark implements [outbox.Lease].
func (l *lease) Mark(ctx context.Context) (outbox.Mark, error) {
	h, err := l.holders(ctx)
	if err != nil {
		return nil, err
	}
	m := &mark{running: h.running}
	for id := range h.prepared {
		m.running[id] = struct{}{}
	}
	return m, nil
}

// Settled implements [outbox.Lease]. It may change the mark.
func (l *lease) Settled(ctx context.Context, of outbox.Mark) (bool, error) {
	m, ok := of.(*mark)
	if !ok {
		return false, fmt.Errorf("outbox: %T is no mark of this store", of)
	}
	if len(m.running) == 0 && len(m.prepared) == 0 {
		return true, l.deposed()
	}
	h, err := l.holders(ctx)
	if err != nil {
		return false, err
	}
	return m.settle(h), nil
}

func (m *mark) settle(now holders) bool {
	if m.prepared == nil {
		for id := range m.running {
			_, running := now.running[id]
			_, prepared := now.prepared[id]
			if !running && !prepared {
				delete(m.running, id)
			}
		}
		for id := range m.running {
			if _, running := now.running[id]; running {
				return false
			}
		}
		// The rest was prepared under its own id; others may have been under another id.
		m.running, m.prepared = nil, now.prepared
	}
	for id := range m.prepared {
		if _, still := now.prepared[id]; !still {
			delete(m.prepared, id)
		}
	}
	return len(m.prepared) == 0
}
