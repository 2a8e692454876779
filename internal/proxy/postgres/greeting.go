package postgres

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file keeps what clients are told at login, and what they may still believe,
// true: the parameters that the server reports. They change without weir: a standby
// is promoted, a default changes with a reload, by ALTER ROLE or with a restart.
// The server speaks of that only when it is spoken to. So each connection that is
// opened, for a login or for the pool, is compared with what the one before it
// said, and a greeting that has to be asked for comes from a connection that has
// just answered.

// liveParameter reports whether the server changes a parameter in sessions that
// there are, so that they need not be replaced for it.
func liveParameter(name string) bool { return name == "in_hot_standby" }

// renewEvery is how often a pool's connections are replaced because new ones are
// told again what they were told before the last change: several servers behind one
// address may differ for good.
const renewEvery = 10 * time.Second

// greetings are what a pool's clients are told at login.
type greetings struct {
	p        *pool
	greeting map[*session.Set][]pgwire.Param // ParameterStatus by settings
	base     map[string]string               // ... that the last new connection was told
	// baseBefore is what base was before its last change.
	baseBefore map[string]string
	renewed    time.Duration // when base last had connections replaced
}

// fresh compares what a new connection was told with what the last one was.
func (g *greetings) fresh(params map[string]string) {
	p := g.p
	if maps.Equal(g.base, params) {
		return
	}
	alternates := maps.Equal(g.baseBefore, params)
	before := g.base
	g.base, g.baseBefore = maps.Clone(params), before
	if before == nil {
		return
	}
	var changed []pgwire.Param
	renew := false
	for name, value := range params {
		if before[name] != value {
			changed = append(changed, pgwire.Param{Name: name, Value: value})
			renew = renew || !liveParameter(name)
		}
	}
	clear(g.greeting)
	p.facts.known = false // whether the server takes writes, for one
	if renew && (!alternates || p.l.Now-g.renewed > renewEvery) {
		g.renewed = p.l.Now
		p.renewBackends()
	}
	// A session without settings of its own is told what this connection was. It need not
	// ask: every backend may be in a transaction.
	g.greeting[p.settings.Empty()] = greetingOf(params, params["application_name"])
	for _, c := range p.l.Clients {
		if c.p == p && c.login.greeted {
			c.settings.owe(changed)
		}
	}
}

// maxGreetings bounds those that are kept.
const maxGreetings = 1000

// remember keeps what clients with certain settings are told. Past maxGreetings the others
// are forgotten, but that of sessions without settings: see fresh.
func (g *greetings) remember(set *session.Set, params []pgwire.Param) {
	if len(g.greeting) >= maxGreetings {
		maps.DeleteFunc(g.greeting, func(old *session.Set, _ []pgwire.Param) bool { return old.Len() > 0 })
	}
	g.greeting[set] = params
}

// greetingOf returns what a client is told at login, by name, from what the server told
// the connection.
func greetingOf(params map[string]string, app string) []pgwire.Param {
	out := make([]pgwire.Param, 0, len(params))
	for name, value := range params {
		if name == "application_name" {
			value = app
		}
		out = append(out, pgwire.Param{Name: name, Value: value})
	}
	slices.SortFunc(out, func(a, b pgwire.Param) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// owe has the client told of parameters that differ from now on, unless it has
// set them itself.
func (sg *settings) owe(changed []pgwire.Param) {
	for _, param := range changed {
		if _, own := sg.c.set.Get(strings.ToLower(param.Name)); own || param.Name == "application_name" {
			continue
		}
		sg.owed = append(sg.owed, param)
	}
	sg.pay()
}

// pay tells the client what it is owed, when nothing of it is under way.
func (sg *settings) pay() {
	c := sg.c
	if len(sg.owed) == 0 || c.inflight > 0 || c.link != nil || c.s.Closed || c.s.Closing {
		return
	}
	out := c.s.OutBuf()
	for _, param := range sg.owed {
		if _, own := c.set.Get(strings.ToLower(param.Name)); own {
			continue // by now
		}
		out = pgwire.AppendParameterStatus(out, param.Name, param.Value)
		c.texts.told(param.Name, param.Value)
	}
	c.s.Out = out
	c.s.Touch()
	sg.owed = nil
}

// outdated reports whether a report that a backend sends with the answer to u comes
// from outside: nothing that weir sent was to change settings.
func (b *backend) outdated(u *unit, name string) bool {
	return u == nil || liveParameter(name) || u.kind == unitClient && b.owner == nil
}
