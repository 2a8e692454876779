package mysql

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/outbox"
)

// What the log yields can be seen by every other session, although the log has a
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
