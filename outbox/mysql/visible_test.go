package mysql

import (
	"context"
	"fmt"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/outbox"
)

// Rows that the log yields can be seen by every other session, although the log has a
// transaction before the engine has committed it.
func TestTailYieldsWhatCanBeSeen(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		s := migrated(t, m, db, Options{}, outbox.Plan{})
		pool := producers(t, m, db)
		tail, err := leadIt(t, s).Tail(t.Context())
		check(t, err)
		defer tail.Close()
		const writers, each = 16, 100
		var g errgroup.Group
		for range writers {
			c := connect(t, pool)
			g.Go(func() error {
				for range each {
					if _, err := c.ExecContext(t.Context(), "INSERT INTO weir_outbox (topic, payload) VALUES ('t', 'p')"); err != nil {
						return err
					}
				}
				return nil
			})
		}
		observer := connect(t, pool)
		seen, unseen := 0, 0
		for seen < writers*each {
			rows, err := tail.Next(t.Context())
			check(t, err)
			seqs := make([]string, len(rows))
			for i := range rows {
				seqs[i] = fmt.Sprint(rows[i].Seq)
			}
			var there int
			check(t, observer.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM weir_outbox WHERE seq IN ("+strings.Join(seqs, ",")+")").Scan(&there))
			seen += len(rows)
			unseen += len(rows) - there
		}
		check(t, g.Wait())
		if unseen > 0 {
			t.Errorf("%d of %d rows came before they could be seen", unseen, seen)
		}
	})
}

// Rows that are gone when they are looked for hold up nothing.
func TestTailDoesNotWaitForWhatIsGone(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		s := migrated(t, m, db, Options{}, outbox.Plan{})
		pool := producers(t, m, db)
		tail, err := leadIt(t, s).Tail(t.Context())
		check(t, err)
		defer tail.Close()
		run(t, pool, "INSERT INTO weir_outbox (topic, payload) VALUES ('t', 'p')", "DELETE FROM weir_outbox")
		rows, err := tail.Next(t.Context())
		check(t, err)
		if len(rows) != 1 {
			t.Errorf("%d rows, want 1", len(rows))
		}
	})
}

// Rows that a locking read finds may not be visible yet: they are handed on when a plain read
// has shown them, or when they are gone.
func TestSettleEndsWithAPlainRead(t *testing.T) {
	type step struct {
		how   readMode
		found []int64
		err   error
	}
	for name, steps := range map[string][]step{
		"seen at once":             {{plainRead, []int64{1, 2}, nil}},
		"in the log and not yet":   {{plainRead, nil, nil}, {lockingRead, []int64{1, 2}, nil}, {plainRead, []int64{1}, nil}, {lockingRead, []int64{2}, nil}, {plainRead, []int64{2}, nil}},
		"one is gone":              {{plainRead, []int64{1}, nil}, {lockingRead, nil, nil}},
		"gone after it was found":  {{plainRead, []int64{1}, nil}, {lockingRead, []int64{2}, nil}, {plainRead, nil, nil}, {lockingRead, nil, nil}},
		"its owner takes its time": {{plainRead, []int64{1}, nil}, {lockingRead, nil, &driver.MySQLError{Number: errLockWait}}, {plainRead, nil, nil}, {lockingRead, []int64{2}, nil}, {plainRead, []int64{2}, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			n := 0
			err := waitVisible(t.Context(), map[int64]struct{}{1: {}, 2: {}}, func(_ context.Context, seqs []int64, how readMode) ([]int64, error) {
				if n == len(steps) {
					return seqs, fmt.Errorf("look %d (%d) for %v is one too many", n+1, how, seqs)
				}
				s := steps[n]
				if n++; s.how != how {
					t.Errorf("look %d is %d, want %d", n, how, s.how)
				}
				return s.found, s.err
			})
			check(t, err)
			if n != len(steps) {
				t.Errorf("ended after %d looks, want %d", n, len(steps))
			}
		})
	}
}
