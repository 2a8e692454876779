package postgres

import (
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is about statements that the client names both in SQL and in messages. The server
// has one list of names, but statements that were prepared by messages have weir's names on it.
// Where both may be used, weir also prepares the statement under the client's name: it lends it.

// bySQL reports whether is returns true for one of the names of prepared statements in a
// text: after its first statement such a name may also be that of a cursor.
func bySQL(info *sqlscan.Statement, is func(name string) bool) bool {
	first := false
	switch info.Verb {
	case sqlscan.VerbPrepare, sqlscan.VerbExecute, sqlscan.VerbDeallocate:
		first = info.Name != ""
	case sqlscan.VerbExplain, sqlscan.VerbDDL:
		first = info.Name != "" && info.Effects.Has(sqlscan.EffPrepare) // EXPLAIN EXECUTE, CREATE TABLE AS EXECUTE
	}
	return first && is(info.Name) || info.Effects.Has(sqlscan.EffPrepare|sqlscan.EffRelease) && slices.ContainsFunc(info.Names, is)
}

// borrows returns the client's protocol-level statements that a text may name in SQL, and
// that the backend does not have under the client's names.
func (ss *statements) borrows(info *sqlscan.Statement) (names []string) {
	bySQL(info, func(name string) bool {
		if ss.byName[name] != nil && !slices.Contains(ss.lent, name) && !slices.Contains(names, name) {
			names = append(names, name)
		}
		return false
	})
	return names
}

// mayBeSQL reports whether the client may have prepared a statement of that name by SQL, for
// which the server would refuse a Parse. In transaction mode such a statement stays behind.
func (ss *statements) mayBeSQL(name string) bool {
	return ss.c.pins.held&pinPrepare != 0 && ss.c.mode() != session.ModeTransaction && ss.c.tx != pgwire.StatusFailed &&
		!strings.HasPrefix(name, srvPrefix) && !slices.Contains(ss.lent, name)
}

// A lending is a hidden Parse by which a unit lends a statement, or the hidden Close that
// takes it back.
type lending struct {
	at   int // in the unit's exp
	name string
	ends bool
}

// unlend undoes what a failed unit would have lent and taken back, from the failed message
// on.
func (ss *statements) unlend(u *unit) {
	for _, n := range slices.Backward(u.lends) {
		switch {
		case n.at < u.expAt:
			return
		case n.ends:
			ss.lent = append(ss.lent, n.name)
		default:
			ss.takeBack(n.name)
		}
	}
}

// takeBack records that the backend no longer has a statement under the client's name.
func (ss *statements) takeBack(name string) {
	ss.lent = slices.DeleteFunc(ss.lent, func(s string) bool { return s == name })
}

// lend prepares a protocol-level statement of the client under its
// own name, because SQL is about to use that name.
func (ss *statements) lend(name string) *stmt {
	c := ss.c
	name = strings.Clone(name)
	st := ss.byName[name]
	c.p.stmts.refresh(st)
	b := c.link
	ss.lent = append(ss.lent, name)
	u := c.l.newUnit(unitHidden)
	u.done = func(u *unit) {
		if u.err != nil {
			ss.takeBack(name)
		}
	}
	b.Push(u, b.p.l.Now)
	out := pgwire.AppendParseRaw(b.s.OutBuf(), name, st.typed())
	b.s.Out = pgwire.AppendSync(out)
	b.s.Touch()
	ss.leftovers = true
	return st
}

// lendTo is statements.lend within u, whose statement may name another one.
func (fw *forwarder) lendTo(u *unit, info *sqlscan.Statement) {
	c := fw.c
	for _, name := range c.stmts.borrows(info) {
		st := c.stmts.byName[name]
		c.p.stmts.refresh(st)
		fw.note(u, &st.info)
		fw.lend(u, strings.Clone(name), st)
	}
}

// lend makes the server prepare a statement under the client's name, too. A later unit that
// uses the name waits until that has succeeded.
func (fw *forwarder) lend(u *unit, name string, st *stmt) {
	ss, b := &fw.c.stmts, fw.c.link
	ss.renames(u, name)
	ss.lent, ss.leftovers = append(ss.lent, name), true
	u.lends = append(u.lends, lending{at: len(u.exp), name: name})
	b.s.Out = pgwire.AppendParseRaw(b.s.OutBuf(), name, st.tail)
	u.exp = append(u.exp, expect{code: expHiddenParse})
}

// closeLent closes what the server was lent under the client's name.
func (fw *forwarder) closeLent(u *unit, name string) {
	b := fw.c.link
	fw.c.stmts.takeBack(name)
	u.lends = append(u.lends, lending{at: len(u.exp), name: name, ends: true})
	b.s.Out = pgwire.AppendClose(b.s.OutBuf(), pgwire.KindStatement, name)
	b.s.Touch()
	u.exp = append(u.exp, expect{code: expHiddenClose})
}
