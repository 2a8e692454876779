package mysql

import (
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// This file handles session_track_system_variables. A client may choose the variables whose
// changes the server reports: MariaDB Connector/J does, in its first statement. On weir's
// connections the list is weir's own, all variables. So weir keeps the client's list: it sets
// it on the client's backend for a statement that sets or reads the list, queries its value
// afterwards, and sets its own again. From the answers of other statements weir removes what is
// not in the client's list.
//
// While the client's list is set, the server does not report all changes to weir. So weir sets
// it only for a statement whose text shows that it changes nothing but the variables that it
// sets, and queries those; a session that sets the list in another way is pinned.

// trackList is the variable that holds the list.
const trackList = "session_track_system_variables"

// trackedVariables is the client's list. The zero value stands for the server's default.
type trackedVariables struct {
	chosen bool
	text   string   // as the server has it
	names  []string // the names in text, in lower case
}

func listOf(text string) trackedVariables {
	return trackedVariables{chosen: true, text: text, names: namesIn(text)}
}

// namesIn returns the names of a list of variables, in lower case.
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

// isReported reports whether the client gets changes of a variable reported. While its own list
// is set on the backend, the server decides.
func (sg *settings) isReported(name []byte) bool {
	switch b := sg.c.link; {
	case sg.choseVariables, b != nil && b.shows:
		return true
	case sg.list.chosen:
		return listed(sg.list.names, name)
	}
	return sg.c.p.facts.isReported(name)
}

// Effects of statements for which the client's list can be set.
const (
	listSets  = myscan.EffSet | myscan.EffSetBare | myscan.EffSetUnknown | myscan.EffSysVar
	listReads = myscan.EffSysVar | myscan.EffSessionRead
)

// pinsMaySet are pins of sessions whose list may differ from the one that weir knows.
const pinsMaySet = pinTrack | pinFunction | pinOpaque | pinUnknown | pinPrepare

// needsList reports whether a statement needs the client's list on the backend.
func (sg *settings) needsList(sql string, info *myscan.Statement) bool {
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

// useList sets the client's list on its backend, and looks again at its statement. If something
// that weir cannot read may have set the list there, that is the client's.
func (sg *settings) useList() {
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

// putList is useList for a backend that has weir's own list.
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
		if u.err != nil { // for example because the client has set a session privilege
			sg.pinList(b)
		}
		c.fwd.goOn()
	})
}

// keepingWarnings calls then, which overwrites the warnings on a backend, after it has fetched
// those of the client's last statement.
func (sg *settings) keepingWarnings(b *backend, then func()) {
	c := sg.c
	if c.diag.last.leftOn(b) && b.lastUser == c {
		c.diag.fetch(then)
		return
	}
	then()
}

// noteList records the variables to query when the list has been set.
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

// restoreList sets weir's own list again after a statement that needed the client's.
func (sg *settings) restoreList(b *backend, u *unit) {
	c := sg.c
	asks := u.asks
	switch {
	case b.s.Closed || c.s.Closed:
		return
	case u.failed && len(asks) > 0 && !u.refused() || c.state.asking():
		sg.pinList(b) // a part of it may have taken effect
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

// aliased are variables that share their memory with another name, under which a server that
// confuses variables reports them if its list has all.
var aliased = map[string]bool{
	"tx_isolation": true, "tx_read_only": true, "collation_connection": true, "collation_database": true, "collation_server": true,
}

// choose records the list that the client has set. It returns false if a variable in it belongs
// to the connection, or would not be reported under that name: then the client keeps the
// connection.
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

// retrackList sets weir's own list again.
func (sg *settings) retrackList(b *backend) {
	c := sg.c
	b.ask(retrackSQL, func(u *unit) {
		b.shows = false
		b.Doomed = b.Doomed || u.err != nil
		c.state.leave(stateAsking)
		c.resume()
	})
}

// dropList is restoreList for a statement that weir has refused or that needs no list: it then
// looks again at the next one.
func (sg *settings) dropList() {
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

// pinList leaves the list on the client's backend as it is, and pins the client there.
func (sg *settings) pinList(b *backend) {
	sg.choseVariables, b.shows, b.Doomed = true, false, true
	sg.c.pins.add(pinTrack)
}
