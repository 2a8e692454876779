package mysql

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// A Definition is a parsed CREATE TABLE statement, as SHOW CREATE TABLE prints it.
type Definition struct {
	Head  string // "CREATE TABLE `t` ("
	Items []string
	Tail  string // ") ENGINE=InnoDB …"
}

// ParseDefinition parses a CREATE TABLE statement. It recognizes strings, names, comments and
// parentheses only.
func ParseDefinition(sql string) (Definition, error) {
	var d Definition
	open := skip(sql, 0, '(')
	if open < 0 {
		return d, fmt.Errorf("definition %.60q: no list of columns", sql)
	}
	d.Head = sql[:open+1]
	at := open + 1
	for {
		end := item(sql, at)
		if end < 0 {
			return d, fmt.Errorf("definition %.60q: the list of columns does not end", sql)
		}
		d.Items = append(d.Items, strings.TrimSpace(sql[at:end]))
		if sql[end] == ')' {
			d.Tail = sql[end:]
			return d, nil
		}
		at = end + 1
	}
}

// skip returns the index of the byte c outside of strings and names, from i on.
func skip(sql string, i int, c byte) int {
	for i < len(sql) && sql[i] != c {
		if i = next(sql, i); i < 0 {
			return -1
		}
	}
	if i >= len(sql) {
		return -1
	}
	return i
}

// item returns the end of an item of the list: a comma or the last parenthesis.
func item(sql string, i int) int {
	depth := 0
	for i >= 0 && i < len(sql) {
		switch sql[i] {
		case '(':
			depth++
		case ')':
			if depth == 0 {
				return i
			}
			depth--
		case ',':
			if depth == 0 {
				return i
			}
		}
		i = next(sql, i)
	}
	return -1
}

// next returns the end of the token that begins at i: a string, a name, or a single byte; -1 if
// it has no end.
func next(sql string, i int) int {
	quote := sql[i]
	if quote != '\'' && quote != '`' && quote != '"' {
		return i + 1
	}
	for i++; i < len(sql); i++ {
		switch {
		case sql[i] == '\\' && quote != '`':
			i++
		case sql[i] != quote:
		case i+1 < len(sql) && sql[i+1] == quote:
			i++
		default:
			return i + 1
		}
	}
	return -1
}

// String returns the text of the definition.
func (d Definition) String() string {
	return d.Head + "\n  " + strings.Join(d.Items, ",\n  ") + "\n" + d.Tail
}

// Tablespace returns the general tablespace of the table, or "".
func (d Definition) Tablespace() string {
	const word = " TABLESPACE "
	for i := 0; i >= 0 && i < len(d.Tail); i = next(d.Tail, i) {
		if rest, ok := strings.CutPrefix(d.Tail[i:], word+"`"); ok {
			if end := next(d.Tail, i+len(word)); end > 0 {
				return strings.ReplaceAll(rest[:end-i-len(word)-2], "``", "`")
			}
		}
	}
	return ""
}

// Engine returns the storage engine that the definition names.
func (d Definition) Engine() string {
	for i := 0; i >= 0 && i < len(d.Tail); i = next(d.Tail, i) {
		if rest, ok := strings.CutPrefix(d.Tail[i:], " ENGINE="); ok {
			name, _, _ := strings.Cut(rest, " ")
			name, _, _ = strings.Cut(name, "\n")
			return name
		}
	}
	return ""
}

// IsForeignKey reports whether an item is a foreign key.
func IsForeignKey(item string) bool {
	rest, ok := strings.CutPrefix(item, "CONSTRAINT ")
	if ok {
		if i := next(rest, 0); i > 0 {
			rest = strings.TrimSpace(rest[i:])
		}
	} else {
		rest = item
	}
	return strings.HasPrefix(rest, "FOREIGN KEY ")
}

// keywords are the beginnings of items that are secondary indexes.
var keywords = []string{"KEY ", "UNIQUE KEY ", "FULLTEXT KEY ", "SPATIAL KEY ", "VECTOR KEY "}

// IsIndex reports whether an item is an index that is not the primary key.
func IsIndex(item string) bool {
	for _, k := range keywords {
		if strings.HasPrefix(item, k) {
			return true
		}
	}
	return false
}

// ItemName returns the name of an index or constraint, or "".
func ItemName(item string) string {
	start := strings.IndexByte(item, '`')
	if start < 0 {
		return ""
	}
	end := next(item, start)
	if end < 0 {
		return ""
	}
	return strings.ReplaceAll(item[start+1:end-1], "``", "`")
}

// Auto returns the name of the AUTO_INCREMENT column, or "".
func (d Definition) Auto() string {
	for _, it := range d.Items {
		if strings.HasPrefix(it, "`") && outside(it, " AUTO_INCREMENT") {
			return ItemName(it)
		}
	}
	return ""
}

// Split divides a table's definition into the table that rows need, and the indexes and foreign
// keys that are cheaper to create after the rows. Indexes stay in the table's definition if the
// table is not an InnoDB table, if it has no primary key (an index takes its place), or if an
// AUTO_INCREMENT column depends on one of them.
func (d Definition) Split() (table Definition, indexes, foreign []string) {
	table = Definition{Head: d.Head, Tail: d.Tail}
	auto, primary := d.Auto(), ""
	for _, it := range d.Items {
		if strings.HasPrefix(it, "PRIMARY KEY ") {
			primary = ItemName(it)
		}
	}
	inline := !outside(d.Tail, " ENGINE=InnoDB") || primary == "" || auto != "" && auto != primary
	for _, it := range d.Items {
		switch {
		case IsForeignKey(it) && outside(d.Tail, " ENGINE=InnoDB"):
			foreign = append(foreign, it)
		case IsIndex(it) && !inline:
			indexes = append(indexes, it)
		default:
			table.Items = append(table.Items, it)
		}
	}
	return table, indexes, foreign
}

// outside reports whether text contains words outside of strings and names.
func outside(text, words string) bool {
	for i := 0; i >= 0 && i < len(text); i = next(text, i) {
		if strings.HasPrefix(text[i:], words) {
			return true
		}
	}
	return false
}

// Definer removes the DEFINER clause from a CREATE statement, and returns its account
// unchanged: "`user`@`host`", or "".
func Definer(sql string) (without, definer string) {
	const word = "DEFINER="
	for i := 0; i >= 0 && i < len(sql); i = next(sql, i) {
		if !strings.HasPrefix(sql[i:], word) {
			// The clause comes before the name of the object.
			if sql[i] == '`' {
				return sql, ""
			}
			continue
		}
		end := i + len(word)
		for end > 0 && end < len(sql) && sql[end] != ' ' {
			end = next(sql, end)
		}
		if end < 0 {
			return sql, ""
		}
		return sql[:i] + strings.TrimPrefix(sql[end:], " "), sql[i+len(word) : end]
	}
	return sql, ""
}

// Requalify replaces the database in qualified names of a statement: names in backquotes,
// followed by a dot.
func Requalify(sql, from, to string) string {
	if from == to {
		return sql
	}
	var b strings.Builder
	done := 0
	for i := 0; i >= 0 && i < len(sql); {
		end := next(sql, i)
		if end > 0 && end < len(sql) && sql[i:end] == Ident(from) && sql[end] == '.' && (i == 0 || sql[i-1] != '.') {
			b.WriteString(sql[done:i])
			b.WriteString(Ident(to))
			done = end
		}
		i = end
	}
	return b.String() + sql[done:]
}

// In returns the statement that creates the entry in a database with another name. The server
// qualifies the names that defaults of tables and views refer to, such as sequences, and the
// libraries of a routine.
func (e *Entry) In(from, to string) string {
	switch e.Kind {
	case KindDatabase:
		return e.Renamed(to)
	case KindTable:
		return Requalify(e.Create, from, to)
	case KindView: // in which a table may have the same name as the database
		sql := e.Create
		for _, f := range []string{"nextval(", "lastval(", "setval("} {
			sql = strings.ReplaceAll(sql, f+Ident(from)+".", f+Ident(to)+".")
		}
		return sql
	case KindFunction, KindProcedure:
		head, rest, ok := strings.Cut(e.Create, " USING (")
		list, body, closed := strings.Cut(rest, ") AS $")
		if ok && closed && strings.Contains(head, " LANGUAGE ") {
			return head + " USING (" + Requalify(list, from, to) + ") AS $" + body
		}
	}
	return e.Create
}

// textual replaces strings in a table's definition that are not valid text, such as defaults of
// binary columns, by hexadecimal literals: archives store definitions as UTF-8.
func textual(sql string) string {
	if utf8.ValidString(sql) {
		return sql
	}
	var b strings.Builder
	done := 0
	for i := 0; i >= 0 && i < len(sql); {
		end := next(sql, i)
		if sql[i] == '\'' && end > 0 && !utf8.ValidString(sql[i:end]) {
			b.WriteString(sql[done:i])
			if i > 0 && sql[i-1] != ' ' && sql[i-1] != '(' && sql[i-1] != ',' { // _binary'...'
				b.WriteByte(' ')
			}
			b.WriteString(Hex(unquoted(sql[i+1 : end-1])))
			done = end
		}
		i = end
	}
	return b.String() + sql[done:]
}

// unquoted returns the content of a string whose outer quotes were removed.
func unquoted(s string) string {
	special := map[byte]byte{'0': 0, 'n': '\n', 'r': '\r', 't': '\t', 'b': '\b', 'Z': 0x1a}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if (c == '\\' || c == '\'') && i+1 < len(s) {
			i++
			escaped := c == '\\'
			c = s[i]
			if b, ok := special[c]; ok && escaped {
				c = b
			}
		}
		out = append(out, c)
	}
	return string(out)
}
