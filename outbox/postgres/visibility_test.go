package postgres

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/outbox"
)

func TestSnapshotSeesTransactions(t *testing.T) {
	const wrapped = 3<<32 + 5 // the counter's lower half has just begun again
	for _, c := range []struct {
		text string
		xid  uint32
		want bool
	}{
		{"100:100:", 99, true},
		{"100:100:", 100, false},
		{"100:110:100,105", 100, false},
		{"100:110:100,105", 105, false},
		{"100:110:100,105", 104, true},
		{"100:110:100,105", 110, false},
		{fmt.Sprintf("%d:%d:", wrapped, wrapped), 4, true},
		{fmt.Sprintf("%d:%d:", wrapped, wrapped), 5, false},
		{fmt.Sprintf("%d:%d:", wrapped, wrapped), 1<<32 - 1, true}, // before the beginning
		{fmt.Sprintf("%d:%d:%d", 3<<32-2, wrapped, 3<<32-2), 1<<32 - 2, false},
		{fmt.Sprintf("%d:%d:", 3<<32-2, 3<<32-2), 3, false}, // after it
	} {
		s, err := parseSnapshot(c.text)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.sees(c.xid); got != c.want {
			t.Errorf("%s sees %d: %v, want %v", c.text, c.xid, got, c.want)
		}
	}
	for _, text := range []string{"", "1:2", "1:x:", "1:2:3,", "a:2:"} {
		if _, err := parseSnapshot(text); err == nil {
			t.Errorf("%q was taken for a snapshot", text)
		}
	}
}

// Rows that the tail returns are visible to every other session, although a transaction is in
// the log before it is visible.
func TestTailYieldsWhatCanBeSeen(t *testing.T) {
	r := newRig(t, server(t))
	l := r.lead(r.migrated(outbox.Plan{}))
	tail, err := l.Tail(r.ctx())
	r.check(err)
	defer tail.Close()
	const producers = 16
	each := testkit.Rounds(50, 150)
	var g errgroup.Group
	for range producers {
		c := r.conn()
		g.Go(func() error {
			for range each {
				if _, err := c.ExecContext(r.ctx(), "INSERT INTO weir_outbox (topic) VALUES ('t')"); err != nil {
					return err
				}
			}
			return nil
		})
	}
	observer := r.conn()
	seen, unseen := 0, 0
	for seen < producers*each {
		rows, err := tail.Next(r.ctx())
		r.check(err)
		seqs := make([]int64, len(rows))
		for i := range rows {
			seqs[i] = rows[i].Seq
		}
		var there int
		r.check(observer.QueryRowContext(context.Background(), "SELECT count(*) FROM weir_outbox WHERE seq = ANY($1)", seqs).Scan(&there))
		seen += len(rows)
		unseen += len(rows) - there
	}
	r.check(g.Wait())
	if unseen > 0 {
		t.Errorf("%d of %d rows came before they could be seen", unseen, seen)
	}
}

// The server keeps its log for a tail beside a transaction that stays open, and
// the tail can say how much.
func TestTailSaysWhatTheServerKeeps(t *testing.T) {
	r := newRig(t, server(t))
	l := r.lead(r.migrated(outbox.Plan{}))
	opened, err := l.Tail(r.ctx())
	r.check(err)
	defer opened.Close()
	follows, ok := opened.(*tail)
	if !ok {
		t.Fatalf("the tail is a %T", opened)
	}
	follows.stuck = 0
	kept := func() int64 {
		n, err := follows.Kept(r.ctx())
		r.check(err)
		return n
	}
	r.exec("CREATE TABLE other (x text)")
	open := r.conn()
	r.on(open, "BEGIN")
	r.on(open, "INSERT INTO weir_outbox (topic) VALUES ('t')")
	r.exec("INSERT INTO other SELECT repeat('y', 1000) FROM generate_series(1, 5000)")
	r.eventually("what was written since is kept", func() bool { return kept() > 2<<20 })
	r.on(open, "COMMIT")
	if _, err := opened.Next(r.ctx()); err != nil {
		t.Fatal(err)
	}
	r.eventually("the log is kept no longer", func() bool {
		time.Sleep(500 * time.Millisecond) // the tail tells the server every ten seconds
		r.exec("CHECKPOINT")
		return kept() < 1<<20
	})
}
