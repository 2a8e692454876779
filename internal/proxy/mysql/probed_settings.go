package mysql

import (
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// This file is settings of which the server is asked, because it does not tell.
//
// MariaDB does not tell of SET @@name = ..., without a scope. And from some version on
// it keeps what it has to tell under a variable's place in memory: those that share
// one, such as all flags and all that have none, are told of under the name of the one
// that was set first on the connection. Such servers are known by a canary: they
// confuse variables.

// A confusable variable has no place of its own in memory, so that a server that
// confuses variables may tell of it under the name of another of these.
func confusable(name string) bool {
	switch strings.ToLower(name) {
	case "last_gtid", "last_insert_id", "identity", "insert_id", "timestamp", "rand_seed1", "rand_seed2":
		return true
	}
	return false
}

// confusionCanary sets two flags and two variables without a place to what they are.
const (
	confusionCanary = "SET SESSION sql_notes=@@SESSION.sql_notes, sql_warnings=@@SESSION.sql_warnings, timestamp=DEFAULT, last_insert_id=0"
	canaryVariables = 4
)

// confuses keeps whether the server has told of all that the canary sets.
func (b *backend) confuses(u *unit) {
	if u.err == nil {
		b.p.facts.confuses = u.toldOf < canaryVariables
	}
}

// retrackSQL has the server forget under which names it tells.
const retrackSQL = "SET SESSION session_track_system_variables='*'"

// noteUntold looks for what a statement may set without the server telling.
func (sg *settings) noteUntold(u *unit, info *myscan.Statement) {
	c := sg.c
	f := &c.p.facts
	for a := range info.Set.All() {
		if a.Name == "character set" { // the collation is the database's
			u.asks = slices.Clone(charsetNames[:])
		}
	}
	if !f.mariadb || !info.Effects.Has(myscan.EffSet) || !info.Effects.Has(myscan.EffSetBare) && !f.confuses {
		return
	}
	if info.Verb != myscan.VerbSet || info.Count != 1 || info.Effects.Has(myscan.EffUnknown|myscan.EffStatementSet) {
		c.pins.add(pinSet)
		return
	}
	for a := range info.Set.All() {
		cause, own := unreplayed[a.Name]
		switch {
		case a.Name == "names" || a.Name == "character set":
			// Told of, but not which collation comes with it; servers that are new
			// enough to confuse variables also have character_set_collations.
			if f.confuses {
				u.asks = append(u.asks, charsetNames[:]...)
			}
		case a.Scope != myscan.ScopeSession && a.Name != "":
		case own && (cause != 0 || f.confuses):
			c.pins.add(cause | pinIf(cause == 0, pinSet))
			u.retrack = f.confuses
		case own:
		case isCharset(a.Name): // which hang together
			u.asks = append(u.asks, charsetNames[:]...)
		case !plainName(a.Name):
			c.pins.add(pinSet)
		default:
			u.asks = append(u.asks, strings.Clone(a.Name))
		}
	}
	slices.Sort(u.asks)
	u.asks = slices.Compact(u.asks)
}

func pinIf(cond bool, p pin) pin {
	if cond {
		return p
	}
	return 0
}

// plainName reports whether a variable's name can stand in a text as it is.
func plainName(name string) bool {
	for i := range len(name) {
		if c := name[i]; c != '_' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// ask asks for the values of settings that the client's statement has set.
func (sg *settings) ask(b *backend, names []string) {
	c := sg.c
	if c.diag.last.leftOn(b) && b.lastUser == c {
		c.diag.fetchWarnings(func() { sg.askValues(b, names) })
		return
	}
	sg.askValues(b, names)
}

func (sg *settings) askValues(b *backend, names []string) {
	c := sg.c
	c.state.enter(stateAsking)
	sql := "SELECT "
	for i, n := range names {
		if i > 0 {
			sql += ", "
		}
		sql += "CAST(@@SESSION." + n + " AS BINARY)" // whatever character set results have
	}
	b.ask(sql, func(u *unit) {
		told := false
		if rows := u.result(b.p.key.caps); len(rows) == 1 && len(rows[0]) == len(names) {
			set := c.set
			for i, n := range names {
				if n == trackList {
					told = sg.choose(string(rows[0][i]))
					continue
				}
				set = sg.trackVariable(set, n, string(rows[0][i]))
			}
			sg.adopt(b, set)
		} else {
			c.pins.add(pinSet)
		}
		switch {
		case b.shows && told:
			sg.retrackList(b)
		case b.shows:
			sg.pinList(b)
			fallthrough
		default:
			c.state.leave(stateAsking)
		}
		c.resume()
	})
}

// retrack has the server tell of what comes under its own name.
func (b *backend) retrack(c *client) {
	if !c.settings.choseVariables {
		b.ask(retrackSQL, func(u *unit) { b.Doomed = b.Doomed || u.err != nil })
	}
}

// setLastID gives the connection a LAST_INSERT_ID().
func (b *backend) setLastID(id string) {
	sql := "SET SESSION last_insert_id=" + id
	if c := b.owner; b.p.facts.confuses && (c == nil || !c.settings.choseVariables) {
		sql += ", session_track_system_variables='*'"
	}
	b.ask(sql, func(u *unit) { b.Doomed = b.Doomed || u.err != nil })
}

// isGTID reports whether a variable told of may be last_gtid.
func (f *poolFacts) isGTID(name []byte) bool {
	return string(name) == "last_gtid" || f.confuses && confusable(string(name))
}

// settledUntold asks for what the answer to a statement of the client's has not told.
func (sg *settings) settledUntold(b *backend, u *unit) {
	c := sg.c
	if b.shows {
		sg.hide(b, u)
		return
	}
	if u.retrack {
		b.retrack(c)
	}
	switch {
	case len(u.asks) == 0 || u.refused() || b.s.Closed:
	case u.failed || c.state.asking():
		c.pins.add(pinSet) // a part of it may have been done
	default:
		sg.ask(b, u.asks)
	}
}
