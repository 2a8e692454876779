package postgres

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file makes sure that what clients are told at login remains
// true: the parameters that the server reports. They change without weir: a standby
// is promoted, a default changes with a reload, by ALTER ROLE or with a restart.
// The server reports that only with its next answer. So weir compares each new
// connection, opened for a login or for the pool, with the one before it;
// and if weir must ask for a greeting, it does so on a connection that has
// just answered.

// liveParameter reports whether the server changes a parameter in existing
// sessions, so that they do not have to be replaced.
func liveParameter(name string) bool { return name == "in_hot_standby" }

// renewEvery is the least time between two replacements of a pool's connections, if new ones
// are told the values from before the last change again: several servers behind one
// address may differ permanently.
const renewEvery = 10 * time.Second

// greetings are what a pool's clients are told at login.
type greetings struct {
	p        *pool
	greeting map[*session.Set][]pgwire.Param // ParameterStatus by settings
	base     map[string]string               // ... that the last new connection was told
	// baseBefore is what base was before its last change.
	baseBefore map[string]string
	renewed    time.Duration // when the pool's connections were last replaced because base had changed
}

// fresh compares what a new connection was told with what the previous one was.
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
	p.facts.known = false // one of them is whether the server takes writes
	if renew && (!alternates || p.l.Now-g.renewed > renewEvery) {
		g.renewed = p.l.Now
		p.renewBackends()
	}
	// A session without settings of its own is told what this connection was. It does not have to
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

// remember keeps what clients with these settings are told. Beyond maxGreetings all others
// are forgotten, except that of sessions without settings: see fresh.
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

// owe records parameters that the client must be told of because they have changed, unless it has
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

// pay tells the client of them, when it has nothing in flight.
func (sg *settings) pay() {
	c := sg.c
	if len(sg.owed) == 0 || c.inflight > 0 || c.link != nil || c.s.Closed || c.s.Closing {
		return
	}
	out := c.s.OutBuf()
	for _, param := range sg.owed {
		if _, own := c.set.Get(strings.ToLower(param.Name)); own {
			continue // it is unchanged by now
		}
		out = pgwire.AppendParameterStatus(out, param.Name, param.Value)
		c.texts.told(param.Name, param.Value)
	}
	c.s.Out = out
	c.s.Touch()
	sg.owed = nil
}

// outdated reports whether a report that a backend sends with the answer to u has another
// cause: weir has sent nothing that changes settings.
func (b *backend) outdated(u *unit, name string) bool {
	return u == nil || liveParameter(name) || u.kind == unitClient && b.owner == nil
}
