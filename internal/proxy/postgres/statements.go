package postgres

import (
	"bytes"
	"cmp"
	"hash/maphash"
	"strings"

	"github.com/weirdb/weir/internal/proxy/postgres/catalogue"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// statements are the prepared statements of the client, by its own names for them.
type statements struct {
	c *client

	byName       map[string]*stmt
	unnamed      *stmt
	bytes        int // of their texts
	pendingNames     // names whose meaning depends on answers that have not come
	// unnamedAt is the link during which the unnamed statement was parsed on
	// the backend itself, unnamed there too; 0 if it was not.
	unnamedAt uint64
	leftovers bool     // SQL-prepared statements may be left on the backend
	lent      []string // protocol-level statements that the backend has under the client's names
}

// maxClientTexts bounds the texts of one client's statements.
const maxClientTexts = 32 << 20

// fits reports whether the client may have one more statement, of that name. Otherwise it
// sends the client an error and disconnects it.
func (ss *statements) fits(name []byte, st *stmt) bool {
	size := ss.bytes + len(st.tail)
	if len(name) == 0 && ss.unnamed != nil {
		size -= len(ss.unnamed.tail) // which it replaces
	}
	if size <= maxClientTexts {
		return true
	}
	e := pgwire.NewFatal(pgwire.CodeProgramLimit, "weir: the prepared statements of this session have more than %d MB of text", maxClientTexts>>20)
	e.Hint = "Close those that are not needed any more; most drivers have a setting for how many they keep."
	ss.c.fatal(e)
	return false
}

// use and leave count the client's names for a statement.
func (ss *statements) use(st *stmt) {
	st.refs++
	ss.bytes += len(st.tail)
}

func (ss *statements) leave(st *stmt) {
	st.refs--
	ss.bytes -= len(st.tail)
}

// name makes a client's name point to a statement.
func (ss *statements) name(name string, st *stmt) {
	ss.use(st)
	if name == "" {
		if ss.unnamed != nil {
			ss.leave(ss.unnamed)
		}
		ss.unnamed, ss.unnamedAt = st, 0
		return
	}
	if old := ss.byName[name]; old != nil {
		ss.leave(old)
	}
	if ss.byName == nil {
		ss.byName = make(map[string]*stmt)
	}
	ss.byName[name] = st
}

func (ss *statements) unname(name string) {
	if name == "" {
		if ss.unnamed != nil {
			ss.leave(ss.unnamed)
			ss.unnamed = nil
		}
		return
	}
	if st := ss.byName[name]; st != nil {
		ss.leave(st)
		delete(ss.byName, name)
	}
}

// rename makes a client's name point to st, or to nothing if st is nil, as a message of u
// demands, and remembers how to undo that.
func (ss *statements) rename(u *unit, n parsedName) {
	ss.renames(u, n.name)
	n.prev = ss.unnamed
	if n.name != "" {
		n.prev = ss.byName[n.name]
	}
	if n.st == nil {
		ss.unname(n.name)
	} else if n.prev != n.st || n.name == "" {
		ss.name(n.name, n.st)
	}
	u.parsed = append(u.parsed, n)
}

// unparse undoes what the messages of a failed unit did to the client's
// names, from the failed message on: the server skipped those after it.
func (ss *statements) unparse(u *unit) {
	ss.unlend(u)
	done := 0
	for _, x := range u.exp[:min(u.expAt, len(u.exp))] {
		if x.code == expParse || x.code == expOwnParse || x.code == expOwnClose {
			done++
		}
	}
	for i := len(u.parsed) - 1; i >= done; i-- {
		n := &u.parsed[i]
		now := ss.unnamed
		if n.name != "" {
			now = ss.byName[n.name]
		}
		prev := n.prev
		if n.name == "" && i == done && u.expAt < len(u.exp) && u.exp[u.expAt].code == expParse {
			prev = nil // a refused Parse ends the unnamed statement
		}
		switch {
		case ss.by(n.name) > u.named:
			// A later unit gives the name another meaning. When that is undone, the name must get the
			// meaning from before this unit.
			if later := ss.behind(u, n.name); later != nil && later.prev == n.st {
				later.prev = prev
			}
		case now != n.st: // something later gave the name another meaning
		case prev == nil:
			ss.unname(n.name)
		case prev != n.st:
			ss.name(n.name, prev)
		}
	}
}

func (ss *statements) replace(old, fresh *stmt) {
	if ss.unnamed == old {
		ss.name("", fresh)
	}
	for n, st := range ss.byName {
		if st == old {
			ss.name(n, fresh)
		}
	}
}

// named is the statement that the client knows by a name.
func (ss *statements) named(name []byte) *stmt {
	if len(name) == 0 {
		return ss.unnamed
	}
	return ss.byName[text(cutName(name))]
}

// cutName is the part of a statement's name that the server compares.
func cutName(name []byte) []byte { return name[:min(len(name), nameLen)] }

// nameLen is the length of that part.
const nameLen = 63

// foreignName is the name under which a statement that weir does not know is passed to the
// server. If the client has prepared some by SQL, it may be one of those, which have their own
// names. Otherwise it must not match a name of weir's: the server will answer that
// it does not exist, and the error is translated back.
func (ss *statements) foreignName(name []byte) string {
	if ss.c.pins.held&pinPrepare != 0 && !bytes.HasPrefix(name, []byte(srvPrefix)) {
		return string(name)
	}
	if len(name) > maxForeignName {
		name = name[:maxForeignName]
	}
	return "client_" + string(name)
}

// maxForeignName bounds how much of a name is passed on: the server ends a session
// that names a statement in more than 10,000 bytes.
const maxForeignName = 9000

// known returns the shared statement for the body of a Parse message after its name,
// nil if there is none yet. sql is its text.
func (ss *statements) known(sql string, tail []byte) *stmt {
	c := ss.c
	if !c.texts.readable(sql) {
		return nil
	}
	c.p.stmts.key(c.set, c.texts.lexical(), tail)
	return c.p.stmts.byKey[string(c.p.stmts.keyBuf)]
}

// mustWait reports whether the linked client's statement can be prepared only when
// the units in flight have been answered.
func (ss *statements) mustWait(st *stmt) bool {
	c := ss.c
	if st.lex.encoding == "" || c.link.Depth() == 0 {
		return false
	}
	return !c.link.has(st) && c.texts.unsettled()
}

// reparse makes sure that a statement which must be parsed again on the linked
// backend is parsed as it was, and returns what is then known of it: nothing, if that cannot be
// ensured. It returns false if units in flight must be answered first.
// A Parse of it in an earlier unit counts as well: see kept.
func (ss *statements) reparse(st *stmt, unnamed bool) (info *catalogue.Reading, ok bool) {
	c := ss.c
	switch {
	case st == nil:
		return nil, true
	case c.link.pending(c, st) && !(unnamed && ss.unnamedAt == c.fwd.linkSeq):
		return nil, false
	case st.lex.encoding == "" || unnamed && ss.unnamedAt == c.fwd.linkSeq: // unchanged, or there already
	case c.cur == nil && ss.mustWait(st):
		return nil, false
	case c.cur == nil && st.readsDifferently(c):
		ss.needAs(st)
	case ss.mustWait(st), st.readsDifferently(c):
		if !c.link.has(st) {
			return &opaque, true
		}
	}
	return &st.info, true
}

// needAs prepares a statement on the linked backend as it was parsed. It is for a
// client that is between units.
func (ss *statements) needAs(st *stmt) {
	c := ss.c
	b := c.link
	if b.has(st) || c.tx == pgwire.StatusFailed {
		return
	}
	read := func(as lexical) {
		b.ask("SET client_encoding TO "+quoteLiteral(as.encoding)+"; SET standard_conforming_strings TO "+as.conforming, func(*unit) {})
	}
	now := b.lex
	read(st.lex)
	u := c.l.newUnit(unitHidden)
	u.done = func(u *unit) {
		if u.err != nil {
			b.unlearn(u)
		}
	}
	b.Push(u, b.p.l.Now)
	b.begin(u)
	b.learn(u, st)
	b.sure(st) // only if it has failed before it could
	u.exp = append(u.exp, expect{code: expHiddenParse, st: st})
	b.putTyped(u, st)
	b.s.Out = pgwire.AppendSync(b.s.OutBuf())
	b.s.Touch()
	read(now)
}

// forgotten is called after DISCARD ALL and DEALLOCATE ALL, when the server has executed
// them: they are not undone by a rollback. The rest of the same text may have prepared new
// statements.
func (ss *statements) forgotten(all bool) {
	c := ss.c
	b := c.link
	b.backendStmts.forget()
	for name := range ss.byName {
		ss.unname(name)
	}
	ss.lent = nil
	if all {
		if c.pins.held&pinsSpoil != 0 {
			b.Retired = true // it may hold what DISCARD ALL leaves
		}
		c.pins.held &= pinMode | pinUntracked | pinLoad | pinUnknown | pinBackup | pinEncoding | pinsSeen
		b.lastWriter, b.mixed = nil, false
		c.forgetSequences(b)
	}
	c.pins.look = c.pins.look || c.pins.held&pinsSeen != 0
}

// restoreNames puts the client's own names back into errors that mention statements by
// weir's names, and marks timeouts that weir has set as weir's.
func restoreNames(msg []byte, e *pgwire.Error, u *unit) []byte {
	switch e.Code {
	case pgwire.CodeQueryCanceled:
		if u.overdue && u.c != nil {
			return pgwire.AppendError(nil, errOverdue(u.c.p))
		}
		return msg
	case pgwire.CodeLockNotAvailable:
		if u.cut && ofTimeout(e) {
			return pgwire.AppendError(nil, errLockBehindRows())
		}
		return msg
	case pgwire.CodeUndefinedStatement, pgwire.CodeDuplicateStatement, pgwire.CodeProtocolViolation:
	default:
		return msg
	}
	if strings.Contains(e.Message, `"client_`) {
		return editError(msg, `"client_`, `"`)
	}
	_, srv, ok := strings.Cut(e.Message, `"`+srvPrefix)
	if !ok {
		return msg
	}
	srv, _, _ = strings.Cut(srv, `"`)
	srv = srvPrefix + srv
	return editError(msg, `"`+srv+`"`, `"`+nameOf(u, srv)+`"`)
}

// nameOf returns the client's name for a statement that the server knows as srv.
func nameOf(u *unit, srv string) string {
	for i := range u.ops {
		if o := &u.ops[i]; o.kind == pgwire.ClientBind && o.st != nil && o.st.srvName == srv {
			return string(u.raw[o.name : o.rest-1])
		}
	}
	is := func(name string, st *stmt) bool { return st != nil && st.srvName == srv }
	if u.expAt < len(u.exp) {
		if x := u.exp[u.expAt]; (x.code == expBind || x.code == expDescribe) && x.st != nil && x.st.srvName == srv {
			is = func(name string, _ *stmt) bool { return numberOf(name) == x.named } // it may have other names
		}
	}
	c := u.c
	if is("", nil) || c == nil {
		return ""
	}
	units := []*unit{u}
	if c.link != nil { // later statements may have taken the name away
		units = append(units, c.link.Units()...)
	}
	for _, v := range units {
		for _, n := range v.parsed {
			if v.c == c && (is(n.name, n.st) || is(n.name, n.prev)) {
				return cmp.Or(n.given, n.name)
			}
		}
	}
	for name, st := range c.stmts.byName {
		if is(name, st) {
			return name
		}
	}
	return ""
}

// numberOf distinguishes the names of a few statements by a hash.
func numberOf(name string) uint32 { return uint32(maphash.String(numberSeed, name)) }

var numberSeed = maphash.MakeSeed()

// editError replaces a part of the server's ErrorResponse and leaves everything else,
// including the order of its fields, as the server sent it.
func editError(msg []byte, old, with string) []byte {
	body := bytes.Replace(msg[pgwire.HeaderLen:], []byte(old), []byte(with), 1)
	return pgwire.AppendMessage(nil, pgwire.ServerError, body)
}
