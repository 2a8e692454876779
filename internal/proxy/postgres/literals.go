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
//   - it is EXECUTE or FETCH, whose columns are those of what has that name in the session;
//   - it has literals, and the session may have settings beside those that the shared
//     statement is found by: SET LOCAL, SET within a transaction;
//   - names may mean other tables: the session has temporary ones, or the search_path of
//     a transaction.
//
// A shared statement that such a session has parsed anew on its backend, because it was parsed
// elsewhere before, is parsed again there before another client uses it. For another search_path
// the server does that by itself.

// readsByItself reports whether the server would now read a statement that the client
// parses otherwise than for others with its settings.
func (ss *statements) readsByItself(st *stmt) bool {
	const elsewhere = sqlscan.EffPath | sqlscan.EffSetUnknown | sqlscan.EffSetConfig
	return st.own || ss.c.link != nil && ss.c.settings.astray.Has(elsewhere) || ss.readsAstray(st)
}

// readsAstray reports whether it reads a statement so that the others must not use it.
func (ss *statements) readsAstray(st *stmt) bool {
	return ss.c.link != nil && (ss.c.pins.held&pinTemp != 0 || ss.readsLiteralsAstray(st))
}

// readsLiteralsAstray reports whether that is so because of the statement's literals.
func (ss *statements) readsLiteralsAstray(st *stmt) bool {
	c := ss.c
	return st.literals && (c.settings.astray&^sqlscan.EffPath != 0 || c.pins.held&pinsSpoil != 0)
}

// single returns a statement like another that is one client's.
func (in *poolStmts) single(like *stmt) *stmt {
	st := *like
	st.srvName, st.refs, st.single = in.name(), 0, true
	return &st
}

// straying are the effects of statements behind which texts may be read by settings that
// are not known yet, or last for a transaction.
const straying = sqlscan.EffLiterals | sqlscan.EffPath | sqlscan.EffSetUnknown | sqlscan.EffSetConfig | sqlscan.EffDiscardAll |
	sqlscan.EffPrepare | sqlscan.EffUnknownFunc | sqlscan.EffUnknown

// strays takes note of a statement that is sent.
func (sg *settings) strays(info *reading) {
	sg.astray |= info.Effects & straying
	if info.Effects.Has(sqlscan.EffSet) {
		for _, set := range clauses(&info.Statement) {
			if set.All {
				sg.astray |= sqlscan.EffLiterals | sqlscan.EffPath
			}
			sg.astray |= sqlscan.ReadBy(set.Name)
		}
	}
}

// calm ends that, if nothing is under way on the client's backend, nor in doubt.
func (sg *settings) calm(b *backend) {
	c := sg.c
	if c.tx == pgwire.StatusIdle && b.Depth() == 0 && c.cur == nil && len(sg.unsure) == 0 {
		sg.astray = 0
		b.parseAgain(false)
	}
}

// parseAgain has statements parsed again that were read in settings that are not theirs:
// before their client uses them, or another does.
func (k *backendStmts) parseAgain(another bool) {
	for st, literals := range k.foreign {
		if !another && !literals {
			continue
		}
		if was, ok := k.prepared[st]; ok {
			was.uncertain = true
			k.prepared[st] = was
		}
		delete(k.foreign, st)
	}
}
