package postgres

import (
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is about what a statement means when it is parsed. The server turns a literal
// into a value of its type at once, by the settings of that moment (TimeZone, DateStyle)
// and, for 'now' and 'today', by its time; and it looks for temporary tables. A statement
// that many clients share was parsed when the first one came. So it is parsed for one
// client alone, who gets what it would directly, where
//
//   - a literal means a time: who comes tomorrow means another day;
//   - it has literals, and the session may have settings beside those that the shared
//     statement is found by: SET LOCAL, SET within a transaction;
//   - the session has temporary tables.
//
// What such a session has weir parse on its backend of a statement that is shared, because
// it was parsed elsewhere before, is parsed again there before anybody else uses it.

// readsByItself reports whether the server would now read a statement of the client's
// otherwise than for others with its settings.
func (ss *statements) readsByItself(st *stmt) bool {
	c := ss.c
	switch {
	case st.moment:
		return true
	case c.link == nil:
		return false
	}
	return c.pins.held&pinTemp != 0 || st.literals && (c.settings.astray || c.pins.held&pinsSpoil != 0)
}

// single returns a statement like another that is one client's.
func (in *poolStmts) single(like *stmt) *stmt {
	st := *like
	st.srvName, st.refs, st.single = in.name(), 0, true
	return &st
}

// straying are the effects of statements behind which literals may be read by settings
// that are not known yet, or last for a transaction.
const straying = sqlscan.EffLiterals | sqlscan.EffSetUnknown | sqlscan.EffSetConfig | sqlscan.EffDiscardAll |
	sqlscan.EffPrepare | sqlscan.EffUnknownFunc | sqlscan.EffUnknown

// strays takes note of a statement that is sent.
func (sg *settings) strays(info *reading) {
	sg.astray = sg.astray || info.Effects.Has(straying)
	if info.Effects.Has(sqlscan.EffSet) {
		for _, set := range clauses(&info.Statement) {
			sg.astray = sg.astray || set.All || sqlscan.Literal(set.Name)
		}
	}
}

// calm ends that, if nothing is under way on the client's backend, nor in doubt.
func (sg *settings) calm(b *backend) {
	c := sg.c
	if c.tx == pgwire.StatusIdle && b.Depth() == 0 && c.cur == nil && len(sg.unsure) == 0 {
		sg.astray = false
		b.parseAgain()
	}
}

// parseAgain has statements parsed again that were read in settings that are not theirs.
func (k *backendStmts) parseAgain() {
	for _, st := range k.foreign {
		if was, ok := k.prepared[st]; ok {
			was.doubt = true
			k.prepared[st] = was
		}
	}
	k.foreign = nil
}
