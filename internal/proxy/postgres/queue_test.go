package postgres

import (
	"slices"
	"testing"

	"github.com/weirdb/weir/internal/proxy/netloop"
)

// While the one free backend is for reads that share, a turn goes through all clients
// that wait: they keep their order, those that have left lose their place, and no
// memory is allocated.
func TestThoseWhoWaitOnAreNotCopied(t *testing.T) {
	p := &pool{l: &loop{srv: new(Server), cfg: new(Config)}, size: keepForShared}
	p.l.cfg.ReadLanes = 1
	p.l.srv.config.Store(p.l.cfg)
	p.l.srv.creds.init(p.l.cfg)
	for range p.size {
		p.backends = append(p.backends, &backend{p: p})
	}
	p.free = p.backends[:1:1]
	var want []*client
	for i := range 50 {
		c := &client{s: &netloop.Sock{}, waiting: i%3 != 0}
		p.excl = append(p.excl, waiter{c: c})
		if c.waiting {
			want = append(want, c)
		}
	}
	allocs := testing.AllocsPerRun(10, p.dispatch)
	var got []*client
	for _, w := range p.excl {
		got = append(got, w.c)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d wait on, want %d in their order", len(got), len(want))
	}
	if allocs > 0 {
		t.Errorf("%v allocations in each turn", allocs)
	}
}
