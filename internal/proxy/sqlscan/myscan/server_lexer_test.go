package myscan

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// modesOfQuotes are the settings of sql_mode that change what a quote means.
var modesOfQuotes = []struct {
	setting string
	mode    Mode
}{
	{"", Mode{}},
	{"ANSI_QUOTES", ansi},
	{"NO_BACKSLASH_ESCAPES", noEscapes},
	{"ANSI_QUOTES,NO_BACKSLASH_ESCAPES", Mode{AnsiQuotes: true, NoBackslashEscapes: true}},
}

// columnsOf returns what the lexer takes for the list of a SELECT: its items'
// tokens, or nil if it could not read it.
func columnsOf(list string, mode Mode) [][]piece {
	l := newLexer(list, mode)
	items, depth := [][]piece{nil}, 0
	for t := l.next(); t.kind != tokEOF; t = l.next() {
		switch t.kind {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth == 0 {
				items = append(items, nil)
				continue
			}
		}
		last := len(items) - 1
		items[last] = append(items[last], piece{t.kind, list[t.start:t.end]})
	}
	if l.broken || l.doubtful {
		return nil
	}
	return items
}

// checkLiterals lets the server read literals in each mode, and compares how many
// columns it sees and what those that are one literal hold.
func (l live) checkLiterals() {
	conn := l.session()
	fixed := []string{
		`'a'', b', 1`, `'\', ''', 2`, `'a' -- x, y` + "\n 'b', 4", "'a' # , \n, 2", `"a"", 'b'", 2`, "1 as `a, ``b`, 2", "n',', N',', _latin1',', x'2c', b'101', 1", "1 /* , /* , */, 2",
		"1 --, 2\n, 3", "1--1, 2", "1 --\t, 2\n, 3", "1 as a, 0x2c, 0b1, 1.5e3, .5, 1.e5, 1e5x, 2", "@`a,b`, @'c,d', @\"e,f\", @g.h, @@version, @@global.sql_mode, 1", "@x:=1, 2", "'\\\\', 2", "'\\\\\\', 2', 3",
		"t.1e5, t.`2,3` from (select 1 as 1e5, 2 as `2,3`) t", "1 /*! , 2 */ , 3", "1 /*!40000 , 2 /* , */ , 3 */ , 4", "'a' 'b,c' \"d\", 2", "'ü,', `ü`.`,` from (select 1 as `,`) `ü`", "1 /*!00000, 2 */", `'\'`, `"\"`, `"\", 1`,
	}
	accepted, values := 0, 0
	random := rand.New(rand.NewPCG(1, 2))
	for _, m := range modesOfQuotes {
		mode := m.mode
		mode.MariaDB, mode.Version = l.mode.MariaDB, l.mode.Version
		l.exec(conn, "set sql_mode = '"+m.setting+"'")
		lists := append([]string(nil), fixed...)
		for range 400 {
			lists = append(lists, randomList(random))
		}
		for _, list := range lists {
			rows, err := l.query(conn, "select "+list)
			items := columnsOf(list, mode)
			if l.errorCode(err) != 0 || len(rows) != 1 {
				continue // one more or one less is as wrong for the server
			}
			accepted++
			if got := strings.Split(rows[0], "|"); len(got) != len(items) {
				l.Errorf("%q in mode %q: %d columns, the server sees %d", list, m.setting, len(items), len(got))
			} else {
				values += compareValues(l.T, list, items, got, mode)
			}
		}
	}
	if accepted < 200 || values < 200 {
		l.Errorf("the server took only %d lists, %d literals", accepted, values)
	}
}

// compareValues compares the columns that are one literal; it returns how many.
func compareValues(t *testing.T, list string, items [][]piece, got []string, mode Mode) int {
	n := 0
	for i, item := range items {
		if len(item) != 1 || item[0].kind != tokString || item[0].text[0] != '\'' && item[0].text[0] != '"' {
			continue
		}
		n++
		if text, ok := unquoteString(item[0].text, mode); !ok || text != got[i] {
			t.Errorf("%q: %s is %q, the server has %q", list, item[0].text, text, got[i])
		}
	}
	return n
}

// randomList returns a list of literals whose content means mischief.
func randomList(random *rand.Rand) string {
	alphabet := []string{"'", "''", `"`, `""`, `\`, `\\`, `\'`, `\"`, "a", " ", ",", "--", "-- ", "#", "/*", "*/", "\n", "%", `\%`, `\n`, "\\0", "ü"}
	var b strings.Builder
	for i := range 1 + random.IntN(4) {
		if i > 0 {
			b.WriteString(", ")
		}
		quote := []string{"'", "'", `"`}[random.IntN(3)]
		b.WriteString(quote)
		for range random.IntN(4) {
			b.WriteString(alphabet[random.IntN(len(alphabet))])
		}
		b.WriteString(quote)
		b.WriteString([]string{"", "", "", " -- ,\n", " /* , */", " # ,\n"}[random.IntN(6)])
	}
	return b.String()
}

// checkExecutable compares which executable comments run.
func (l live) checkExecutable() {
	conn := l.session()
	compared := 0
	for _, version := range []string{
		"", "40000", "50699", "50700", "50701", "50744", "80000", "90000", "90704", "90705", "99999", "099999", "050000", "080000", "090704", "090705", "100000", "101119", "101120", "110000", "999999",
		"1", "1234", "123456",
	} {
		for _, form := range []string{"select 1 /*!%s , 2 */", "select 1 /*M!%s , 2 */", "select 1 /*!%s, 2 */", "select 1 /*!%s /* , */ , 2 */ , 3", "select 1 /*M!%s /* , */ , 2 */"} {
			text := strings.ReplaceAll(form, "%s", version)
			list := strings.TrimPrefix(text, "select ")
			items := columnsOf(list, l.mode)
			rows, err := l.query(conn, text)
			if items == nil || l.errorCode(err) != 0 {
				continue
			}
			compared++
			if got := strings.Count(rows[0], "|") + 1; got != len(items) {
				l.Errorf("%s: %d columns, the server sees %d", text, len(items), got)
			}
		}
	}
	if compared < 60 {
		l.Errorf("only %d comments compared", compared)
	}
}
