package postgres

import (
	"testing"

	"github.com/weirdb/weir/internal/proxy/core"
)

// The first role status that is heard of a login is not known to be that of its connections, those
// of its other pools among them.
func TestConnectionsOfALoginBeforeItsStandingIsHeard(t *testing.T) {
	t.Parallel()
	l := &loop{srv: new(Server), cfg: new(Config)}
	l.srv.config.Store(l.cfg)
	l.srv.creds.init(l.cfg)
	l.srv.lookups = new(lookups)
	l.Pools = make(map[poolKey]*pool)
	var have identity
	for _, role := range []string{"", "r"} {
		p := &pool{l: l, key: poolKey{"d", "u", role}, identity: &have}
		p.Init(p, new(core.ConnQuotas), &l.Loop.Loop, &l.Agenda, nil, t.Context())
		l.Pools[p.key] = p
	}
	b := &backend{}
	plain, as := l.Pools[poolKey{"d", "u", ""}], l.Pools[poolKey{"d", "u", "r"}]
	plain.Backends = append(plain.Backends, b)
	st := &roleStatus{server: "s"}
	st.mark, st.id = "m", "1"
	if e := have.compare(as, nil, st); e != nil {
		t.Fatal(e)
	}
	if !b.Retired {
		t.Error("a connection stays that may be another role's")
	}
}
