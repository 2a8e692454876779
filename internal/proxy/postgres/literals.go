package postgres

import (
	"github.com/weirdb/weir/internal/proxy/postgres/catalogue"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is about statements whose meaning depends on when and where they are parsed. The
// server turns a literal into a value of its type at once, by the present settings (TimeZone,
// DateStyle) and, for 'now' and 'today', by the present time; and names may refer to temporary
// tables. A shared statement was parsed for the first client that used it. So a statement is
// parsed for one client alone, which then gets what it would get directly, if
//
//   - a literal means a time: tomorrow it means another day;
//   - it is EXECUTE or FETCH, whose columns depend on what has that name in the session;
//   - it has literals, and the session may have settings that are not part of the shared
//     statement's key: SET LOCAL, SET within a transaction;
//   - names may refer to other tables: the session has temporary ones, or the search_path of
//     a transaction.
//
// If such a session has parsed a shared statement again on its backend, because it was parsed
// elsewhere before, it is parsed once more there before another client uses it. For another
// search_path the server does that itself.

// readsByItself reports whether the server would now parse a statement of the client
// differently than for other clients with the same settings.
func (ss *statements) readsByItself(st *stmt) bool {
	const elsewhere = sqlscan.EffPath | sqlscan.EffSetUnknown | sqlscan.EffSetConfig
	return st.own || ss.c.link != nil && ss.c.settings.astray.Has(elsewhere) || ss.readsAstray(st)
}

// readsAstray reports whether other clients must not use the result.
func (ss *statements) readsAstray(st *stmt) bool {
	return ss.c.link != nil && (ss.c.pins.held&pinTemp != 0 || ss.readsLiteralsAstray(st))
}

// readsLiteralsAstray reports whether that is because of the statement's literals.
func (ss *statements) readsLiteralsAstray(st *stmt) bool {
	c := ss.c
	return st.literals && (c.settings.astray&^sqlscan.EffPath != 0 || c.pins.held&pinsSpoil != 0)
}

// single returns a copy of a statement that belongs to one client.
func (in *poolStmts) single(like *stmt) *stmt {
	st := *like
	st.srvName, st.refs, st.single = in.name(), 0, true
	return &st
}

// straying are the effects of statements after which texts may be parsed with settings that
// are not known yet, or last for a transaction.
const straying = sqlscan.EffLiterals | sqlscan.EffPath | sqlscan.EffSetUnknown | sqlscan.EffSetConfig | sqlscan.EffDiscardAll |
	sqlscan.EffPrepare | sqlscan.EffUnknownFunc | sqlscan.EffUnknown

// strays records the effects of a statement that is sent.
func (sg *settings) strays(info *catalogue.Reading) {
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

// calm ends that state, if nothing is in flight on the client's backend, nor in doubt.
func (sg *settings) calm(b *backend) {
	c := sg.c
	if c.tx == pgwire.StatusIdle && b.Depth() == 0 && c.cur == nil && len(sg.unsure) == 0 {
		sg.astray = 0
		b.parseAgain(false)
	}
}

// parseAgain makes statements be parsed again that were parsed with settings that are not
// theirs: before their client uses them, or, with another, before another client does.
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
