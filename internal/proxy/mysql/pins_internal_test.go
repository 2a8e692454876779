package mysql

import (
	"testing"

	"github.com/weirdb/weir/internal/proxy/mysql/catalogue"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// TestWhatMayJoinAResourceGroup: after what may have joined a resource group a connection is
// closed. Modes that ignore the state of sessions close it only after what certainly has.
func TestWhatMayJoinAResourceGroup(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name           string
		effects        myscan.Effect
		unread         bool // the catalogue does not say what is called
		kept, ignoring bool // closed in the modes auto and session; in the others
	}{
		{name: "nothing"},
		{name: "a call of a body that is known", effects: myscan.EffUnknownFunc},
		{name: "a call of one that is not", effects: myscan.EffUnknownFunc, unread: true, kept: true},
		{name: "a body that is not shown", effects: catalogue.Opaque, kept: true},
		{name: "SET RESOURCE GROUP", effects: myscan.Scan("SET RESOURCE GROUP g", myscan.Mode{}).Effects, kept: true, ignoring: true},
		{name: "a body with it", effects: myscan.ReadBody("SET RESOURCE GROUP g", myscan.Mode{}).Effects, kept: true, ignoring: true},
	} {
		for _, mode := range []session.Mode{session.ModeAuto, session.ModeSession, session.ModeTransaction, session.ModeStatement} {
			for _, mariadb := range []bool{false, true} {
				c := &client{l: &loop{cfg: &Config{}}, p: &pool{}, link: &backend{}}
				c.l.cfg.Mode, c.p.facts.mariadb, c.p.facts.version = mode, mariadb, 90700
				c.pins.c = c
				e := tc.effects
				if mode == session.ModeSession {
					e = joined(e, !tc.unread)
				} else if tc.unread {
					continue // it is judged when the catalogue has been read
				}
				c.pins.add(pinsOf(e))
				want := tc.kept
				if mode == session.ModeTransaction || mode == session.ModeStatement {
					want = tc.ignoring
				}
				if want = want && !mariadb; c.link.Doomed != want {
					t.Errorf("%s, mode %s, MariaDB %v: closed %v, want %v", tc.name, mode, mariadb, c.link.Doomed, want)
				}
			}
		}
	}
}
