package mysql

import (
	"encoding/hex"
	"strings"
)

// Ident quotes a name.
func Ident(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// Idents quotes names and puts commas between them.
func Idents(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = Ident(n)
	}
	return strings.Join(quoted, ", ")
}

// Qualified quotes the name of something in a database.
func Qualified(database, name string) string { return Ident(database) + "." + Ident(name) }

// Literal quotes a text. It holds whatever the sql_mode says of backslashes: what
// would need one is written as hexadecimal digits.
func Literal(s string) string {
	if strings.ContainsAny(s, "\\\x00") {
		return "_utf8mb4 " + Hex(s)
	}
	return "'" + strings.ReplaceAll(s, "'", "''") + "'"
}

// Hex writes bytes as a hexadecimal literal.
func Hex(s string) string { return "x'" + hex.EncodeToString([]byte(s)) + "'" }
