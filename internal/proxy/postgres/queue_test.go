package postgres

import (
	"slices"
	"testing"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/netloop"
)

// While the one free backend is for reads that share, a turn goes through all clients
// that wait: they keep their order, those that have left lose their place, and no
// memory is allocated.
func TestThoseWhoWaitOnAreNotCopied(t *testing.T) {
	p := &pool{l: &loop{srv: new(Server), cfg: new(Config)}}
	p.sharing.p, p.alone.p = p, p
	p.l.cfg.PoolSize = core.KeepForShared
	p.Init(p, new(core.ConnQuotas), &p.l.Loop.Loop, &p.l.Agenda, nil, t.Context())
	p.ReadLanes = 1
	p.l.srv.config.Store(p.l.cfg)
	p.l.srv.creds.init(p.l.cfg)
	for range p.Size {
		p.Backends = append(p.Backends, &backend{p: p})
	}
	p.Free = p.Backends[:1:1]
	var want []*client
	for i := range 50 {
		c := &client{l: p.l, p: p, s: &netloop.Sock{}}
		if i%3 != 0 {
			c.state = stateWaiting
		}
		p.Excl = append(p.Excl, waiter{Client: c})
		if c.state == stateWaiting {
			want = append(want, c)
		}
	}
	allocs := testing.AllocsPerRun(10, p.dispatch)
	var got []*client
	for _, w := range p.Excl {
		got = append(got, w.Client)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d wait on, want %d in their order", len(got), len(want))
	}
	if allocs > 0 {
		t.Errorf("%v allocations in each turn", allocs)
	}
}
