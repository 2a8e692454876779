package mysql

import (
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// This file queries settings whose changes the server does not report.
//
// MariaDB does not report SET @@name = ..., without a scope. From some version on it stores
// changes by a variable's address in memory, and reports all variables that share an address,
// such as all flags and all without an address, under the name of the one that was set first on
// the connection. weir recognizes such servers by a canary, and calls them servers that confuse
// variables.

// confusable reports whether a variable has no address of its own in memory: a server that
// confuses variables may report it under the name of another one of these.
func confusable(name string) bool {
	switch strings.ToLower(name) {
	case "last_gtid", "last_insert_id", "identity", "insert_id", "timestamp", "rand_seed1", "rand_seed2":
		return true
	}
	return false
}

// confusionCanary sets two flags and two variables without an address to their current values.
const (
	confusionCanary = "SET SESSION sql_notes=@@SESSION.sql_notes, sql_warnings=@@SESSION.sql_warnings, timestamp=DEFAULT, last_insert_id=0"
	canaryVariables = 4
)

// confuses records whether the server has reported all changes of the canary.
func (b *backend) confuses(u *unit) {
	if u.err == nil {
		b.p.facts.confuses = u.reportedVars < canaryVariables
	}
}

// retrackSQL makes the server forget the names under which it reports changes.
const retrackSQL = "SET SESSION session_track_system_variables='*'"

// noteUnreported records the variables that a statement may set without a report from the
// server.
func (sg *settings) noteUnreported(u *unit, info *myscan.Statement) {
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
			// Reported, but without the collation that comes with it; servers new enough to
			// confuse variables also have character_set_collations.
			if f.confuses {
				u.asks = append(u.asks, charsetNames[:]...)
			}
		case a.Scope != myscan.ScopeSession && a.Name != "":
		case own && (cause != 0 || f.confuses):
			c.pins.add(cause | pinIf(cause == 0, pinSet))
			u.retrack = f.confuses
		case own:
		case isCharset(a.Name): // which depend on each other
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

// plainName reports whether a variable's name can stand in SQL unquoted.
func plainName(name string) bool {
	for i := range len(name) {
		if c := name[i]; c != '_' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// askValues queries the values of settings that the client's statement has set.
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

// retrack makes the server report changes under their own names again.
func (b *backend) retrack(c *client) {
	if !c.settings.choseVariables {
		b.ask(retrackSQL, func(u *unit) { b.Doomed = b.Doomed || u.err != nil })
	}
}

// setLastID sets the connection's LAST_INSERT_ID().
func (b *backend) setLastID(id string) {
	sql := "SET SESSION last_insert_id=" + id
	if c := b.owner; b.p.facts.confuses && (c == nil || !c.settings.choseVariables) {
		sql += ", session_track_system_variables='*'"
	}
	b.ask(sql, func(u *unit) { b.Doomed = b.Doomed || u.err != nil })
}

// isGTID reports whether a reported variable may be last_gtid.
func (f *poolFacts) isGTID(name []byte) bool {
	return string(name) == "last_gtid" || f.confuses && confusable(string(name))
}

// settledUnreported queries what the answer to a statement of the client's did not report.
func (sg *settings) settledUnreported(b *backend, u *unit) {
	c := sg.c
	if b.shows {
		sg.restoreList(b, u)
		return
	}
	asks, retrack := u.asks, u.retrack
	switch {
	case len(asks) == 0 || u.refused() || b.s.Closed:
		asks = nil
	case u.failed || c.state.asking():
		c.pins.add(pinSet) // a part of it may have taken effect
		asks = nil
	}
	ask := func() {
		if retrack {
			b.retrack(c)
		}
		if len(asks) > 0 {
			sg.askValues(b, asks)
		}
	}
	switch {
	case c.state.asking():
		ask()
	case retrack || len(asks) > 0:
		sg.keepingWarnings(b, ask)
	}
}
