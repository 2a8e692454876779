package postgres

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/postgres/catalogue"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is about encodings. The server converts a text from the session's
// client_encoding before it looks for literals in it. In some encodings the second
// byte of a character may be a backslash, a quote or a letter, so that weir, which
// reads byte by byte, would see a literal end elsewhere than the server does. weir does not
// judge a text that it cannot read: the session keeps its backend (pinEncoding),
// which is closed when the client leaves.
//
// ASCII texts read the same in all encodings. So a session in such an
// encoding is pinned only by the first text that has other bytes in it; parameters
// of Bind do not count. None of its statements shares a backend or joins a group.

// bytewise lists the encodings in which no byte of a longer character is an ASCII
// byte, by the names that the server reports. All encodings of databases are among them,
// so the server reads each text in one of them. weir does not read texts in other
// encodings.
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

// opaque is what weir knows of a text that it cannot read.
var opaque = catalogue.Reading{Statement: sqlscan.Statement{Verb: sqlscan.VerbOther, Effects: sqlscan.EffUnknown | sqlscan.EffEncoding, Count: 1}}

// misread is the error for clients whose texts were read in an encoding that the
// server's sessions no longer have.
func misread() *pgwire.Error {
	e := pgwire.NewError(pgwire.CodeConnectionFailure, "weir has read the statement in another client_encoding than the server's sessions have by now")
	e.Hint = "The default of the server, the database or the role has changed: connect again."
	return e
}

// A lexical is what determines how the server reads a session's texts, as it reports
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

// reportedBy handles the server's report of a setting.
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
// parsed again in the same way, however the session's texts are read by then.

// readsDifferently reports whether the statement's text reads differently in the present session
// than when it was parsed.
func (st *stmt) readsDifferently(c *client) bool {
	return st.lex.encoding != "" && st.lex != c.texts.lexical()
}

// reads records how a statement's text is read, if that makes a difference.
func (st *stmt) reads(as lexical) {
	if st.lex.encoding == "" && (st.info.Effects.Has(sqlscan.EffBackslash) || !sqlscan.ASCII(st.sql)) {
		st.lex = as
	}
}
