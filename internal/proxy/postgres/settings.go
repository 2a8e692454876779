package postgres

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/session"
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
		if s.Literal {
			b.WriteString("SELECT pg_catalog.set_config(")
			b.WriteString(quoteLiteral(s.Name))
			b.WriteString(", ")
			b.WriteString(quoteLiteral(s.Value))
			b.WriteString(", false); ")
		} else {
			b.WriteString("SET ")
			b.WriteString(quoteGUC(s.Name))
			b.WriteString(" TO ")
			b.WriteString(s.Value)
			b.WriteString("; ")
		}
	}
	return b.String()
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
