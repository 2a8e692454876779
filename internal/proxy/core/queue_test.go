package core_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
)

func names(ws []waiter) string {
	var out []string
	for _, w := range ws {
		out = append(out, w.Client.name)
	}
	return strings.Join(out, "")
}

// A pass goes through those who wait in their order. Each letter of the verdicts is
// for one of them: k waits on, d is served, b ends the pass.
func TestPass(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ waiters, verdicts, seen, left string }{
		{"", "", "", ""},
		{"abc", "ddd", "abc", ""},
		{"abc", "kkk", "abc", "abc"},
		{"abcd", "kdkd", "abcd", "ac"},
		{"abcd", "b", "a", "abcd"},
		{"abcd", "dkb", "abc", "bcd"},
		{"abcd", "kdb", "abc", "acd"},
	} {
		var ws core.Waiters[*testBackend, *testClient, *testUnit, *testLane]
		for _, n := range c.waiters {
			ws = append(ws, waiter{Client: &testClient{name: string(n)}})
		}
		seen := ""
		pass := ws.Pass()
	pass:
		for w, ok := pass.Next(); ok; w, ok = pass.Next() {
			seen += w.Client.name
			switch c.verdicts[len(seen)-1] {
			case 'k':
				pass.Keep()
			case 'b':
				pass.Back()
				break pass
			}
		}
		pass.End()
		if seen != c.seen || names(ws) != c.left {
			t.Errorf("%s, %s: saw %s, left %s; want %s, %s", c.waiters, c.verdicts, seen, names(ws), c.seen, c.left)
		}
	}
}

// A waiter that arrives during a pass has a turn as well, and nothing is allocated.
func TestPassOverNewcomers(t *testing.T) { // not parallel: it counts allocations
	p := newTestPool(t, 1)
	p.Enqueue(waiter{Client: &testClient{name: "a"}})
	pass := p.Excl.Pass()
	for w, ok := pass.Next(); ok; w, ok = pass.Next() {
		if w.Client.name == "a" {
			p.Enqueue(waiter{Client: &testClient{name: "b"}})
		} else {
			pass.Keep()
		}
	}
	pass.End()
	if names(p.Excl) != "b" {
		t.Errorf("%q wait on, want b", names(p.Excl))
	}
	if n := testing.AllocsPerRun(10, func() {
		pass := p.Excl.Pass()
		for _, ok := pass.Next(); ok; _, ok = pass.Next() {
			pass.Keep()
		}
		pass.End()
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// Waiters that have waited too long are refused, each in its own way; weir's own questions and
// units whose locks are waited for without a bound go on.
func TestExpire(t *testing.T) {
	t.Parallel()
	p := newTestPool(t, 8)
	p.at(10)
	slotted := p.unit("slotted", 0)
	gone := p.unit("gone", 0)
	for _, u := range []*testUnit{slotted, gone} {
		p.Hold(&u.Turn, core.SlotFresh)
		p.Enqueue(waiter{Unit: u})
	}
	gone.left = true
	p.Enqueue(waiter{Client: &testClient{name: "client"}})
	p.Enqueue(waiter{Client: &testClient{name: "has left", left: true}})
	p.Enqueue(waiter{Lane: &testLane{name: "lane"}})
	p.Enqueue(waiter{Ask: func(*testBackend) {}})
	for _, n := range []string{"apart", "for ever", "left apart"} {
		u := p.unit(n, 0)
		u.left = strings.HasPrefix(n, "left")
		p.QueueApart(u)
	}
	p.Reads = append(p.Reads, p.unit("read", 10), p.unit("late read", 25))
	p.at(30)
	p.Enqueue(waiter{Client: &testClient{name: "late client"}})

	var refused []string
	p.Expire(20*time.Millisecond, func(w waiter) {
		switch {
		case w.Client != nil:
			refused = append(refused, w.Client.name)
		case w.Lane != nil:
			refused = append(refused, w.Lane.name)
		case w.Unit != nil:
			p.FreeSlot(&w.Unit.Turn)
			refused = append(refused, w.Unit.name)
		}
	}, func(u *testUnit) { refused = append(refused, u.name) })
	if want := []string{"slotted", "client", "lane", "apart", "read"}; !slices.Equal(refused, want) {
		t.Errorf("refused: %v, want %v", refused, want)
	}
	if p.Stats.Timeouts != 5 || p.Apart.Used != 0 {
		t.Errorf("%d timeouts, %d slots held", p.Stats.Timeouts, p.Apart.Used)
	}
	if len(p.Excl) != 2 || p.Excl[0].Ask == nil || p.Excl[1].Client.name != "late client" ||
		len(p.Reads) != 1 || p.Reads[0].name != "late read" || len(p.Apart.Fresh) != 1 || p.Apart.Fresh[0].name != "for ever" || p.Waiting() != 4 {
		t.Errorf("%d wait for a backend, %d reads, %d apart", len(p.Excl), len(p.Reads), p.Apart.Waiting())
	}
}

// Units that come while others are dropped stay.
func TestListDrop(t *testing.T) {
	t.Parallel()
	l := core.List[int]{1, 2, 3, 4}
	l.Drop(func(u int) bool {
		if u == 2 {
			l = append(l, 5)
		}
		return u%2 == 0
	})
	if !slices.Equal(l, []int{1, 5, 3}) {
		t.Errorf("%v are left", l)
	}
	l.Skip(0)
	if first := l.Shift(); first != 1 || len(l) != 2 {
		t.Errorf("%d was first, %v are left", first, l)
	}
	if l.Skip(2); len(l) != 0 {
		t.Errorf("%v are left", l)
	}
}

// Between those who share and those who want a backend alone.
func TestSharing(t *testing.T) {
	t.Parallel()
	p := newTestPool(t, 2)
	check := func(what string, starving, readsFirst, shareMore bool) {
		t.Helper()
		if p.Starving() != starving || p.ReadsFirst() != readsFirst || p.MayShareMore(2) != shareMore {
			t.Errorf("%s: starving %v, reads first %v, share more %v", what, p.Starving(), p.ReadsFirst(), p.MayShareMore(2))
		}
	}
	a, b := p.free(), p.free()
	check("all are free", false, false, true)
	p.Claim(a)
	p.Claim(b)
	p.Reads = append(p.Reads, p.unit("read", 1))
	p.at(1)
	p.Enqueue(waiter{Client: &testClient{}})
	check("a read and a client have come", false, true, true)
	p.Shared.Add(a, &a.Conn)
	p.at(6)
	check("one is shared, the client has waited for 5 ms", false, false, false)
	p.at(7)
	check("... and for more than that", true, false, false)
	p.Excl = nil
	check("only the read waits", false, false, true)
	p.Shared.Add(b, &b.Conn)
	check("both are shared", false, false, false)
	p.Shared.Remove(a)
	p.Shared.Remove(a)
	if p.Shared.Len() != 1 || p.Shared.Backends[0] != b {
		t.Error("the wrong one was taken out")
	}
}
