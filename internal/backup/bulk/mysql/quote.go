package mysql

import (
	"encoding/hex"
	"strings"
)

// Ident quotes an identifier.
func Ident(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// Idents quotes identifiers and joins them with commas.
func Idents(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = Ident(n)
	}
	return strings.Join(quoted, ", ")
}

// Qualified quotes the name of an object in a database.
func Qualified(database, name string) string { return Ident(database) + "." + Ident(name) }

// Literal returns a string literal that means the same in every sql_mode: a text with
// backslashes is written as hexadecimal digits.
func Literal(s string) string {
	if strings.ContainsAny(s, "\\\x00") {
		return "_utf8mb4 " + Hex(s)
	}
	return "'" + strings.ReplaceAll(s, "'", "''") + "'"
}

// Hex returns a hexadecimal literal.
func Hex(s string) string { return "x'" + hex.EncodeToString([]byte(s)) + "'" }
