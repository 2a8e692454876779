package mysql

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// A Definition is a CREATE TABLE as SHOW CREATE TABLE prints it, taken apart.
type Definition struct {
	Head  string // "CREATE TABLE `t` ("
	Items []string
	Tail  string // ") ENGINE=InnoDB …"
}

// ParseDefinition takes a CREATE TABLE apart. It knows strings, names, comments
// and parentheses, and nothing of what stands between.
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

// skip returns where the byte c stands outside of strings and names, from i on.
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

// item returns where an item of the list ends: at a comma or the last parenthesis.
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

// next returns where what begins at i ends: a string, a name, or a single byte;
// -1 if it does not.
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

// String puts the definition together again.
func (d Definition) String() string {
	return d.Head + "\n  " + strings.Join(d.Items, ",\n  ") + "\n" + d.Tail
}

// Tablespace is the general tablespace that the table is in, "" if it is in none.
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

// Engine is the storage engine that the definition names.
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

// keywords begin the items that are secondary indexes.
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

// ItemName is the name that an index or constraint has; "" if it has none.
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

// Auto is the column that is AUTO_INCREMENT; "" if there is none.
func (d Definition) Auto() string {
	for _, it := range d.Items {
		if strings.HasPrefix(it, "`") && outside(it, " AUTO_INCREMENT") {
			return ItemName(it)
		}
	}
	return ""
}

// Split divides a table's definition into what rows need, and indexes and foreign
// keys that are cheaper to make after them. Indexes stay where they are if the
// table is no InnoDB table, if it has no primary key, whose place one of them
// takes, or if AUTO_INCREMENT rests on one of them.
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

// outside reports whether words stand in a text outside of strings and names.
func outside(text, words string) bool {
	for i := 0; i >= 0 && i < len(text); i = next(text, i) {
		if strings.HasPrefix(text[i:], words) {
			return true
		}
	}
	return false
}

// Definer cuts the DEFINER clause out of a CREATE statement, and returns it as it
// was: "`user`@`host`"; "" if there is none.
func Definer(sql string) (without, definer string) {
	const word = "DEFINER="
	for i := 0; i >= 0 && i < len(sql); i = next(sql, i) {
		if !strings.HasPrefix(sql[i:], word) {
			// The clause comes before whatever the object is called.
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

// Requalify puts another database's name before what a statement calls by its
// database: names in back quotes, with a dot behind the first.
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

// In is what makes the entry in a database of another name than that in which it was. The
// server puts the database before what a table's defaults and a view call, such as
// sequences, and before the libraries of a routine.
func (e *Entry) In(from, to string) string {
	switch e.Kind {
	case KindDatabase:
		return e.Renamed(to)
	case KindTable:
		return Requalify(e.Create, from, to)
	case KindView: // where a table may be called as the database is
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

// textual writes strings of a table's definition that are no text, such as defaults of binary
// columns, as their bytes: what keeps definitions keeps UTF-8.
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

// unquoted is what a string holds, of which the quotes around it are cut off.
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
