package postgres

import (
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is about encodings. The server converts a text from the session's
// client_encoding before it looks for literals in it. In some encodings the second
// byte of a character may be a backslash, a quote or a letter, so that weir, which
// reads byte by byte, would see a literal end elsewhere than the server does. What
// it can not read it does not judge: the session keeps its backend (pinEncoding),
// which is closed when it leaves.
//
// Texts of ASCII alone read the same in all encodings. So a session in such an
// encoding is pinned only by the first text that has other bytes in it; parameters
// of Bind are no texts. None of its statements shares a backend or joins a group.

// bytewise lists the encodings in which no byte of a longer character is an ASCII
// byte, as the server reports their names. They are all that a database can be
// in, and so what a text is converted to before it is read is one of them. An
// encoding that is not listed is not read.
var bytewise = func() map[string]bool {
	names := strings.Fields(`UTF8 SQL_ASCII EUC_JP EUC_CN EUC_KR EUC_TW EUC_JIS_2004 KOI8R KOI8U
		LATIN1 LATIN2 LATIN3 LATIN4 LATIN5 LATIN6 LATIN7 LATIN8 LATIN9 LATIN10
		ISO_8859_5 ISO_8859_6 ISO_8859_7 ISO_8859_8 WIN866 WIN874
		WIN1250 WIN1251 WIN1252 WIN1253 WIN1254 WIN1255 WIN1256 WIN1257 WIN1258`)
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}()

// ascii tells whether a text has ASCII bytes only.
func ascii(s string) bool {
	for len(s) >= 8 {
		if (s[0]|s[1]|s[2]|s[3]|s[4]|s[5]|s[6]|s[7])&0x80 != 0 {
			return false
		}
		s = s[8:]
	}
	for i := range len(s) {
		if s[i]&0x80 != 0 {
			return false
		}
	}
	return true
}

// opaque is what weir knows of a text that it cannot read.
var opaque = reading{Statement: sqlscan.Statement{Verb: sqlscan.VerbOther, Effects: sqlscan.EffUnknown | sqlscan.EffEncoding, Count: 1}}

// misread is the error for those whose texts were read in an encoding that the
// server's sessions no longer have.
func misread() *pgwire.Error {
	e := pgwire.NewError(pgwire.CodeConnectionFailure, "weir has read the statement in another client_encoding than the server's sessions have by now")
	e.Hint = "The default of the server, the database or the role has changed: connect again."
	return e
}

// A lexical is what decides how the server reads a session's texts, as it reports
// it: client_encoding and standard_conforming_strings.
type lexical struct{ encoding, conforming string }

const (
	encodingName   = "client_encoding"
	conformingName = "standard_conforming_strings"
)

// reads is a text of the session in the syntax that weir's scanner reads.
func (l lexical) reads(sql string) string {
	if l.conforming != "off" {
		return sql
	}
	return sqlscan.Conform(sql)
}

func lexicalSetting(name string) bool { return name == encodingName || name == conformingName }

// lexical is how the server would read the client's next text, if nothing is
// under way.
func (c *client) lexical() lexical {
	if c.link != nil {
		return c.link.lexical()
	}
	return c.lex
}

func (b *backend) lexical() lexical { return b.lex }

// readable tells whether weir reads a text as the server will: it is in a bytewise
// encoding, or ASCII.
func (c *client) readable(sql string) bool {
	safe := c.bytewise
	if c.link != nil {
		safe = c.link.bytewise
	}
	return safe || ascii(sql)
}

// unsettled tells whether a statement of the client that is under way may change
// how the server reads the next one: the report of that comes with its answer.
func (c *client) unsettled() bool {
	b := c.link
	if b == nil {
		return false
	}
	between := c.cur == nil
	return slices.ContainsFunc(b.Units(), func(u *unit) bool {
		// A trigger may, too. Between units it costs little to wait for that; within
		// a pipeline what a write leaves behind is looked at after the write.
		return u.unsettles || between && u.effects.Has(sqlscan.EffWrites)
	})
}

// scanNext reads a text that the linked client sends behind what is under way, of
// which known is the statement if it was read before. It reports false if what is under
// way must be answered first, or if the text is long and is being read.
func (c *client) scanNext(sql string, known *stmt) (info reading, ok bool) {
	if known != nil {
		c.p.current(known)
		info = known.info
	} else if len(sql) <= maxScanned || !c.readable(sql) {
		info = c.scan(sql)
	} else if info, ok = c.scanLong(sql); !ok {
		return opaque, false
	}
	if c.link.Depth() == 0 || info.Effects.Has(sqlscan.EffEncoding) || !(info.Effects.Has(sqlscan.EffBackslash) || !ascii(sql)) || !c.unsettled() {
		return info, true
	}
	return opaque, c.cur != nil // within a pipeline there will be no answer before its Sync
}

// unsettles tells whether a statement may change client_encoding or
// standard_conforming_strings.
func (c *client) unsettles(info *sqlscan.Statement) bool {
	switch e := info.Effects; {
	case e.Has(sqlscan.EffSetUnknown | sqlscan.EffSetConfig | sqlscan.EffUnknownFunc | sqlscan.EffUnknown | sqlscan.EffDiscardAll | sqlscan.EffPrepare | sqlscan.EffTouch):
		return true
	case e.Has(sqlscan.EffSet):
		return slices.ContainsFunc(clauses(info), func(s sqlscan.SetClause) bool { return s.All || lexicalSetting(s.Name) })
	case e.Has(sqlscan.EffTx):
		return c.lexicalTx
	case e.Has(sqlscan.EffWrites) && e.Has(sqlscan.EffSessionRead): // UPDATE pg_settings
		return true
	}
	return false
}

// told follows a report of a setting that the client has been given, and so knows.
func (c *client) told(name, value string) {
	if lexicalSetting(name) && c.tx != pgwire.StatusIdle {
		c.lexicalTx = true
	}
	switch name {
	case encodingName:
		c.lex.encoding, c.bytewise = strings.Clone(value), bytewise[value]
	case conformingName:
		c.lex.conforming = strings.Clone(value)
	}
}

// reportedBy follows a report of a setting by the server.
func (b *backend) reportedBy(name, value string) {
	b.params[name] = value
	switch name {
	case encodingName:
		b.lex.encoding, b.bytewise = value, bytewise[value]
	case conformingName:
		b.lex.conforming = value
	}
}

// A statement's text is read when it is parsed. On another backend it must be
// parsed again as it was, however the session's texts are read by then.

// elsewhere tells whether the statement's text reads differently in the session as
// it is now than when it was parsed.
func (st *stmt) elsewhere(c *client) bool { return st.lex.encoding != "" && st.lex != c.lexical() }

// mustWait tells whether the linked client's statement can be prepared only when
// what is under way has been answered.
func (c *client) mustWait(st *stmt) bool {
	if st.lex.encoding == "" || c.link.Depth() == 0 {
		return false
	}
	_, there := c.link.prepared[st]
	return !there && c.unsettled()
}

// reparse makes sure that a statement which is to be parsed again on the linked
// backend is parsed as it was, and returns what is known of it then: nothing, if it
// cannot be made sure. It reports false if what is under way must be answered first.
func (c *client) reparse(st *stmt, unnamed bool) (info *reading, ok bool) {
	switch {
	case st == nil:
		return nil, true
	case st.lex.encoding == "" || unnamed && c.unnamedAt == c.linkSeq: // as it is, or there already
	case c.cur == nil && c.mustWait(st):
		return nil, false
	case c.cur == nil && st.elsewhere(c):
		c.needAs(st)
	case c.mustWait(st), st.elsewhere(c):
		if _, there := c.link.prepared[st]; !there {
			return &opaque, true
		}
	}
	return &st.info, true
}

// stmtNamed is the statement that the client knows by a name.
func (c *client) stmtNamed(name []byte) *stmt {
	if len(name) == 0 {
		return c.unnamed
	}
	return c.stmts[text(cutName(name))]
}

// needAs prepares a statement on the linked backend as it was parsed. It is for a
// client that is between units.
func (c *client) needAs(st *stmt) {
	b := c.link
	if _, there := b.prepared[st]; there || c.tx == pgwire.StatusFailed {
		return
	}
	read := func(as lexical) {
		b.ask("SET client_encoding TO "+quoteLiteral(as.encoding)+"; SET standard_conforming_strings TO "+as.conforming, func(*unit) {})
	}
	now := b.lexical()
	read(st.lex)
	u := c.l.newUnit(unitHidden)
	u.done = func(*unit) {}
	b.Push(u, b.p.l.Now)
	b.learn(u, st)
	b.s.Out = pgwire.AppendSync(pgwire.AppendParseRaw(b.s.OutBuf(), st.srvName, st.tail))
	b.s.Touch()
	read(now)
}

// reads notes how a statement's text is read, where that makes a difference.
func (st *stmt) reads(as lexical) {
	if st.lex.encoding == "" && (st.info.Effects.Has(sqlscan.EffBackslash) || !ascii(st.sql)) {
		st.lex = as
	}
}

// opaqueStmt is a prepared statement whose text weir does not read. It belongs to
// one client.
func (p *pool) opaqueStmt(tail []byte, as lexical) *stmt {
	st := p.ownStmt("")
	st.tail, st.text, st.info, st.route, st.lex = slices.Clone(tail), opaque.Statement, opaque, routeAlone, as
	st.shape = p.unreadShape()
	return st
}

// shape is what is known of statements like a text that was just scanned.
func (c *client) shape(sql string, info *reading) *sight.Shape {
	switch {
	case info.Effects.Has(sqlscan.EffEncoding):
		return c.p.unreadShape()
	case len(sql) > maxScanned:
		return c.p.shapes.Other()
	}
	return c.p.shape(c.asRead(sql), info.Verb)
}

// asRead is a text that was just scanned. Another may have been judged since.
func (c *client) asRead(sql string) *sqlscan.Text {
	t := &c.l.text
	if as := c.lexical().reads(sql); t.String() != as {
		t.Read(as)
	}
	return t
}

// unreadShape is that of all texts that weir does not read: to cut one into words
// might show what is in its literals.
func (p *pool) unreadShape() *sight.Shape {
	const text = "text in an encoding that weir does not read"
	return p.shapes.Of(sqlscan.Fingerprint(text), opaque.Verb.String(), func(int) string { return text })
}
