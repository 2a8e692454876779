package mysql

import (
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// This file is session_track_system_variables. A client may choose of which variables it
// is told: MariaDB Connector/J does, in its first statement. On weir's connections the
// list is weir's own, all of them. So the client's is kept here: it is put in force on the
// client's backend for a statement that sets it or asks for it, the server is asked what it
// is then, and weir's own is put back. The answers of other statements are cut down to it.
//
// While the client's is in force the server does not tell weir of all that changes. So
// that is done for a statement alone whose text shows that nothing changes but what it
// sets, of which the server is asked; a session that sets the list in another way is
// pinned.

// trackList is the variable that holds the list.
const trackList = "session_track_system_variables"

// trackedVariables is what a client has set it to. The zero one is the server's own.
type trackedVariables struct {
	chosen bool
	text   string   // as the server has it
	names  []string // in it, in lower case
}

func listOf(text string) trackedVariables {
	return trackedVariables{chosen: true, text: text, names: namesIn(text)}
}

// namesIn are the names of a list of variables, in lower case.
func namesIn(text string) (names []string) {
	for name := range strings.SplitSeq(strings.ToLower(text), ",") {
		names = append(names, strings.TrimSpace(name))
	}
	return names
}

// listed reports whether a list has a variable.
func listed(names []string, name []byte) bool {
	for _, n := range names {
		if n == "*" || len(n) == len(name) && strings.EqualFold(n, string(name)) {
			return true
		}
	}
	return false
}

// tells reports whether the client is told of a variable. Where its own list is in force
// the server decides.
func (sg *settings) tells(name []byte) bool {
	switch b := sg.c.link; {
	case sg.choseVariables, b != nil && b.shows:
		return true
	case sg.list.chosen:
		return listed(sg.list.names, name)
	}
	return sg.c.p.facts.tells(name)
}

// Effects of statements for which the client's list can be put in force.
const (
	listSets  = myscan.EffSet | myscan.EffSetBare | myscan.EffSetUnknown | myscan.EffSysVar
	listReads = myscan.EffSysVar | myscan.EffSessionRead
)

// pinsMaySet are pins of sessions whose list may be another one than weir knows.
const pinsMaySet = pinTrack | pinFunction | pinOpaque | pinUnknown | pinPrepare

// ofList reports whether a statement needs the client's list in force.
func (sg *settings) ofList(sql string, info *myscan.Statement) bool {
	if !info.Effects.Has(myscan.EffSet | myscan.EffSysVar) {
		return false
	}
	c := sg.c
	if !c.p.facts.known || c.p.facts.silent || sg.choseVariables || info.Count != 1 {
		return false
	}
	const most = 4 << 10
	if len(sql) > most {
		return false
	}
	switch lower := strings.ToLower(sql); {
	case info.Verb != myscan.VerbSet:
		// Also SHOW VARIABLES LIKE 'session_track%'.
		return info.Effects&^listReads == 0 && strings.Contains(lower, "session_track") && !strings.Contains(lower, "from")
	case info.Effects&^listSets != 0, !strings.Contains(lower, trackList), strings.Contains(lower, "select"), strings.Contains(lower, ":="):
		return false
	}
	sets := false
	for a := range info.Set.All() {
		_, own := unreplayed[a.Name]
		switch {
		case a.Name == "names" || a.Name == "character set":
		case a.Scope != myscan.ScopeSession || !plainName(a.Name) || strings.HasPrefix(a.Name, "wsrep_") || strings.HasPrefix(a.Name, "pseudo_"):
			return false
		case a.Name == trackList:
			sets = true
		case own:
			return false
		}
	}
	return sets
}

// show puts the client's list in force on its backend, and has its statement looked at
// again. Something that weir cannot read may have set a list there: then that is the
// client's.
func (sg *settings) show() {
	c := sg.c
	b := c.link
	sg.keepingWarnings(b, func() {
		c.state.enter(stateAsking)
		if c.pins.held&pinsMaySet != 0 || len(c.texts.unjudged) > 0 {
			b.ask("SELECT CAST(@@SESSION."+trackList+" AS BINARY)", func(u *unit) {
				if c.s.Closed || c.link != b {
					return
				}
				if rows := u.result(b.p.key.caps); len(rows) != 1 || string(rows[0][0]) != "*" {
					sg.pinList(b)
					c.fwd.goOn()
					return
				}
				sg.putList(b)
			})
			return
		}
		sg.putList(b)
	})
}

// putList is show where the list on the backend is weir's own.
func (sg *settings) putList(b *backend) {
	c := sg.c
	text := c.p.facts.trackList
	if sg.list.chosen {
		text = sg.list.text
	}
	b.ask("SET SESSION "+trackList+"="+render(text), func(u *unit) {
		b.shows = true
		if c.s.Closed || c.link != b {
			return
		}
		if u.err != nil { // as by what a client sets of the session's privileges
			sg.pinList(b)
		}
		c.fwd.goOn()
	})
}

// keepingWarnings does what overwrites the warnings on a backend, when those of the
// client's last statement have been fetched.
func (sg *settings) keepingWarnings(b *backend, then func()) {
	c := sg.c
	if c.diag.last.leftOn(b) && b.lastUser == c {
		c.diag.fetchWarnings(then)
		return
	}
	then()
}

// noteList notes of what the server is to be asked when the list has been set.
func (sg *settings) noteList(u *unit, info *myscan.Statement) {
	u.asks = append(u.asks, trackList)
	for a := range info.Set.All() {
		switch {
		case a.Name == "names" || a.Name == "character set" || isCharset(a.Name):
			u.asks = append(u.asks, charsetNames[:]...)
		default:
			u.asks = append(u.asks, strings.Clone(a.Name))
		}
	}
	slices.Sort(u.asks)
	u.asks = slices.Compact(u.asks)
}

// hide puts weir's own list back in force, when a statement has been answered for which
// the client's was.
func (sg *settings) hide(b *backend, u *unit) {
	c := sg.c
	asks := u.asks
	switch {
	case b.s.Closed || c.s.Closed:
		return
	case u.failed && len(asks) > 0 && !u.refused() || c.state.asking():
		sg.pinList(b) // a part of it may have been done
		c.pins.add(pinSet)
		return
	case u.failed:
		asks = nil
	}
	sg.keepingWarnings(b, func() {
		c.state.enter(stateAsking)
		if len(asks) > 0 {
			sg.askValues(b, asks)
		} else {
			sg.retrackList(b)
		}
	})
}

// aliased are variables that have their place in memory under another name as well, by
// which a server that confuses variables tells of them where all are in its list.
var aliased = map[string]bool{
	"tx_isolation": true, "tx_read_only": true, "collation_connection": true, "collation_database": true, "collation_server": true,
}

// choose notes the list that the client has set. It reports false if a variable in it is
// one that each connection has for itself, or that the server would not tell of under that
// name: then the client keeps the connection.
func (sg *settings) choose(text string) bool {
	f := &sg.c.p.facts
	l := listOf(text)
	for _, name := range l.names {
		_, own := unreplayed[name]
		if name == "*" || own && name != trackList || f.isFixed(name) || f.confuses && aliased[name] {
			return false
		}
	}
	sg.list = l
	return true
}

// retrackList puts weir's own list back in force.
func (sg *settings) retrackList(b *backend) {
	c := sg.c
	b.ask(retrackSQL, func(u *unit) {
		b.shows = false
		b.Doomed = b.Doomed || u.err != nil
		c.state.leave(stateAsking)
		c.resume()
	})
}

// unshow is hide where the statement has been refused by weir: it has the next one looked
// at again.
func (sg *settings) unshow() {
	c := sg.c
	b := c.link
	c.state.enter(stateAsking)
	b.ask(retrackSQL, func(u *unit) {
		b.shows = false
		b.Doomed = b.Doomed || u.err != nil
		if !c.s.Closed && c.link == b {
			c.fwd.goOn()
		}
	})
}

// pinList leaves the list on the client's backend as it is, and the client there.
func (sg *settings) pinList(b *backend) {
	sg.choseVariables, b.shows, b.Doomed = true, false, true
	sg.c.pins.add(pinTrack)
}
