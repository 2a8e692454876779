package postgres

import (
	"encoding/hex"
	"strings"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// transition returns the SQL that brings a session from one set to another.
// A parameter that only from has goes back to its session default by RESET,
// which is what it had when the connection began.
func transition(from, to *session.Set) string {
	var b strings.Builder
	for _, old := range from.List() {
		if _, ok := to.Get(old.Name); !ok {
			b.WriteString("RESET ")
			b.WriteString(quoteGUC(old.Name))
			b.WriteString("; ")
		}
	}
	for _, s := range to.List() {
		if have, ok := from.Get(s.Name); ok && have == s {
			continue
		}
		if s.Encoding == "" { // else see replay
			b.WriteString(set(s))
		}
	}
	return b.String()
}

// set is the SQL that applies one setting.
func set(s session.Setting) string {
	if s.Literal {
		return "SELECT pg_catalog.set_config(" + anyLiteral(s.Name) + ", " + anyLiteral(s.Value) + ", false); "
	}
	return "SET " + quoteGUC(s.Name) + " TO " + s.Value + "; "
}

// setIfReset is the SQL that applies one setting unless the session has a value of
// its own, which a RESET that was undone has left it.
func setIfReset(s session.Setting) string {
	without := "EXISTS (SELECT FROM pg_catalog.pg_settings WHERE pg_catalog.lower(name) = " + anyLiteral(s.Name) + " AND source <> 'session')"
	if sqlscan.Custom(s.Name) { // of which that view does not tell
		without = "coalesce(pg_catalog.current_setting(" + anyLiteral(s.Name) + ", true), '') = ''"
	}
	return "SELECT pg_catalog.set_config(" + anyLiteral(s.Name) + ", " + anyLiteral(s.Value) + ", false) WHERE " + without + "; "
}

// replay returns the queries that bring a session from one set to another, one
// after the other. There is more than one only where a SET had other bytes than
// ASCII on its right side: the server reads it as it did then only in the encoding
// of then.
func replay(from, to *session.Set) []string {
	var asWritten []string
	rest := transition(from, to)
	for _, s := range to.List() {
		if have, ok := from.Get(s.Name); s.Encoding == "" || ok && have == s {
			continue
		}
		asWritten = append(asWritten, "SET client_encoding TO "+quoteLiteral(s.Encoding), "SET "+quoteGUC(s.Name)+" TO "+s.Value)
	}
	if asWritten == nil {
		return []string{rest}
	}
	back := "RESET client_encoding; "
	if enc, ok := to.Get(encodingName); ok {
		back = set(enc)
	}
	return append(asWritten, back+rest)
}

// anyLiteral renders s, in the encoding of the database, as an SQL expression that
// is read alike in every encoding.
func anyLiteral(s string) string {
	if ascii(s) {
		return quoteLiteral(s)
	}
	return "pg_catalog.convert_from(pg_catalog.decode('" + hex.EncodeToString([]byte(s)) + "', 'hex'), pg_catalog.getdatabaseencoding())"
}

// quoteLiteral renders s as an SQL string that reads the same whatever
// standard_conforming_strings is.
func quoteLiteral(s string) string {
	var b strings.Builder
	if strings.ContainsRune(s, '\\') {
		b.WriteByte('E')
	}
	b.WriteByte('\'')
	for i := 0; i < len(s); i++ {
		if s[i] == '\'' || s[i] == '\\' {
			b.WriteByte(s[i])
		}
		b.WriteByte(s[i])
	}
	b.WriteByte('\'')
	return b.String()
}

// quoteGUC quotes each part of a possibly dotted parameter name.
func quoteGUC(name string) string {
	parts := strings.Split(name, ".")
	for i, p := range parts {
		parts[i] = `"` + strings.ReplaceAll(p, `"`, `""`) + `"`
	}
	return strings.Join(parts, ".")
}
