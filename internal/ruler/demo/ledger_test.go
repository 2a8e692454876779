package demo

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// A ledger that finds nothing wrong is worth something only if it finds what is.
func TestLedgerFindsEveryBreach(t *testing.T) {
	t.Parallel()
	good := func() (*ledger, map[order]struct{}) {
		l := newLedger()
		rows := make(map[order]struct{})
		for n := range 3 {
			for _, c := range []string{"a", "b"} {
				o := order{c, n + 1}
				l.ordered(o)
				l.delivered(o)
				rows[o] = struct{}{}
			}
		}
		l.delivered(order{"a", 1}) // again, as a relay that took over may
		for i := range 5 {
			l.incremented(int64(i + 1))
		}
		l.lostIncrement()
		l.counter = 6
		far := time.Now().Add(time.Hour)
		l.locked("w1", far)
		l.released("w1")
		l.locked("w2", far)
		l.released("w2")
		return l, rows
	}
	l, rows := good()
	for _, p := range l.judge(rows) {
		if !p.Held {
			t.Errorf("nothing was wrong, and yet: %+v", p)
		}
	}
	far := time.Now().Add(time.Hour)
	for name, tt := range map[string]struct {
		breach func(l *ledger, rows map[order]struct{})
		broken string
	}{
		"an order is lost":          {func(_ *ledger, rows map[order]struct{}) { delete(rows, order{"a", 2}) }, "acknowledged orders"},
		"an event is lost":          {func(_ *ledger, rows map[order]struct{}) { rows[order{"c", 1}] = struct{}{} }, "every order's event"},
		"an event without an order": {func(l *ledger, _ map[order]struct{}) { l.delivered(order{"d", 1}) }, "every order's event"},
		"events in the wrong order": {func(l *ledger, rows map[order]struct{}) {
			l.delivered(order{"a", 9})
			l.delivered(order{"a", 8})
			rows[order{"a", 9}], rows[order{"a", 8}] = struct{}{}, struct{}{}
		}, "events of a customer"},
		"an increment is lost":       {func(l *ledger, _ map[order]struct{}) { l.counter = 4 }, "the counter"},
		"an increment too many":      {func(l *ledger, _ map[order]struct{}) { l.counter = 7 }, "the counter"},
		"a value twice":              {func(l *ledger, _ map[order]struct{}) { l.incremented(3) }, "the counter"},
		"a value beyond the counter": {func(l *ledger, _ map[order]struct{}) { l.incremented(90) }, "the counter"},
		"the lock is held by two":    {func(l *ledger, _ map[order]struct{}) { l.locked("w1", far); l.locked("w2", far) }, "the lock"},
	} {
		l, rows := good()
		tt.breach(l, rows)
		found := false
		for _, p := range l.judge(rows) {
			found = found || !p.Held && strings.HasPrefix(p.What, tt.broken)
		}
		if !found {
			t.Errorf("%s: not found", name)
		}
	}
	// A lock that ended by itself may be taken.
	l, rows = good()
	l.locked("w1", far)
	l.until = time.Now()
	l.locked("w2", far)
	if p := l.judge(rows)[4]; !p.Held {
		t.Errorf("%+v", p)
	}
}

func TestBalancerGoesToWhatAnswers(t *testing.T) {
	t.Parallel()
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = dead.Close()
	b, err := newBalancer(func() []string { return []string{dead.Addr().String(), echo.Addr().String()} })
	if err != nil {
		t.Fatal(err)
	}
	var last net.Conn
	for range 4 {
		c, err := net.Dial("tcp", b.addr())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4)
		if _, err := io.ReadFull(c, got); err != nil || string(got) != "ping" {
			t.Fatalf("%q, %v", got, err)
		}
		if last != nil {
			_ = last.Close()
		}
		last = c
	}
	_ = echo.Close()
	b.close() // ends the connection that is open
	if _, err := last.Read(make([]byte, 1)); err == nil {
		t.Error("a connection outlived the balancer")
	}
	_ = last.Close()
}
