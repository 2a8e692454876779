package mysql

import (
	"slices"
	"strings"
)

// A reach is what a statement of the log changes.
type reach struct {
	// databases are those whose objects it changes. None with known means that it changes
	// objects outside databases, such as accounts.
	databases []string
	known     bool
	control   bool // it controls the transaction itself, such as SAVEPOINT
	rows      bool // it changes rows of unknown tables
}

// reachOf determines from its first words which databases a statement changes; database was the
// default when it ran. Servers log little else than definitions as text. ansi says that double
// quotes enclose names.
func reachOf(sql, database string, ansi bool) reach {
	s := &statement{tokens: tokens(sql, ansi), database: database}
	verb := s.word()
	switch verb {
	case "SAVEPOINT", "ROLLBACK", "RELEASE", "COMMIT", "BEGIN", "START", "XA":
		return reach{control: true, known: true}
	case "SET": // SET STATEMENT x = 1 FOR CREATE TABLE ...
		if !s.skip("STATEMENT") {
			return reach{known: true}
		}
		for ; s.next < len(s.tokens); s.next++ {
			if s.skip("FOR") {
				return s.reach(s.word())
			}
		}
		return reach{known: true}
	}
	return s.reach(verb)
}

// reach parses what follows the first word.
func (s *statement) reach(verb string) reach {
	switch verb {
	case "GRANT", "REVOKE", "FLUSH", "INSTALL", "UNINSTALL", "RESET", "CHANGE", "PURGE":
		return reach{known: true}
	case "CREATE", "ALTER", "DROP":
		s.definition(verb)
	case "RENAME":
		if s.word() == "USER" {
			return reach{known: true}
		}
		s.names("TO")
	case "TRUNCATE":
		s.skip("TABLE")
		s.name()
	case "ANALYZE", "OPTIMIZE", "REPAIR", "CHECK":
		s.skip("NO_WRITE_TO_BINLOG", "LOCAL")
		s.skip("TABLE", "TABLES")
		s.names("")
	case "DELETE": // of all rows, as servers log it when a table in memory begins empty
		history := s.skip("HISTORY")
		s.skip("FROM")
		s.name()
		if !history && s.next < len(s.tokens) && s.tokens[s.next].text != ";" {
			return reach{rows: true}
		}
	case "INSERT", "REPLACE", "UPDATE", "LOAD", "WITH", "CALL", "DO":
		return reach{rows: true}
	default:
		s.lost = true
	}
	if s.lost && len(s.found) == 0 {
		return reach{databases: []string{s.database}}
	}
	return reach{databases: s.found, known: !s.lost}
}

// statement is parsed word by word.
type statement struct {
	tokens   []sqlToken
	next     int
	database string
	found    []string
	lost     bool // the syntax was not as expected
}

func (s *statement) peek() sqlToken {
	if s.next >= len(s.tokens) {
		return sqlToken{}
	}
	return s.tokens[s.next]
}

// word consumes a keyword; "" if there is none.
func (s *statement) word() string {
	t := s.peek()
	if t.kind != wordToken {
		return ""
	}
	s.next++
	return strings.ToUpper(t.text)
}

// skip consumes one of the words, and reports whether it was there.
func (s *statement) skip(words ...string) bool {
	t := s.peek()
	if t.kind != wordToken || !slices.Contains(words, strings.ToUpper(t.text)) {
		return false
	}
	s.next++
	return true
}

// name consumes the name of an object, and records its database.
func (s *statement) name() {
	if q := s.qualifier(); q != "" {
		s.note(q)
		return
	}
	s.note(s.database)
}

// qualifier consumes a name, and returns the database in it; "" if there is none.
func (s *statement) qualifier() string {
	first := s.peek()
	if first.kind == otherToken && first.text != "." {
		s.lost = true
		return ""
	}
	s.next++
	if first.text == "." && first.kind == otherToken { // ".t"
		s.next++
		return ""
	}
	if dot := s.peek(); dot.kind != otherToken || dot.text != "." {
		return ""
	}
	s.next += 2
	return first.text
}

func (s *statement) note(database string) {
	if !slices.Contains(s.found, database) {
		s.found = append(s.found, database)
	}
}

// names consumes a list of names, with a word between two of them that belong together.
func (s *statement) names(between string) {
	s.exists()
	for {
		s.name()
		s.wait()
		if between != "" && s.skip(between) {
			continue
		}
		if t := s.peek(); t.kind != otherToken || t.text != "," {
			return
		}
		s.next++
	}
}

// wait consumes MariaDB's WAIT and NOWAIT.
func (s *statement) wait() {
	if s.skip("WAIT") {
		s.next++
	} else {
		s.skip("NOWAIT")
	}
}

func (s *statement) exists() {
	if s.skip("IF") {
		s.skip("NOT")
		s.skip("EXISTS")
	}
}

// definition parses CREATE, ALTER and DROP up to the kind of object.
func (s *statement) definition(verb string) {
	for s.next < len(s.tokens) {
		switch kind := s.word(); kind {
		case "TABLE", "TABLES", "VIEW", "SEQUENCE":
			if verb == "DROP" {
				s.names("")
				return
			}
			s.exists()
			s.name()
			if verb == "ALTER" && kind == "TABLE" {
				s.others()
			}
			return
		case "DATABASE", "SCHEMA":
			s.exists()
			t := s.peek()
			switch {
			case t.kind == otherToken || verb == "ALTER" && t.kind == wordToken && slices.Contains([]string{"CHARACTER", "COLLATE", "DEFAULT", "COMMENT"}, strings.ToUpper(t.text)):
				s.note(s.database) // ALTER DATABASE may omit the name
			default:
				s.note(t.text)
			}
			return
		case "TRIGGER":
			s.exists()
			database := s.qualifier()
			for database == "" && verb == "CREATE" && s.next < len(s.tokens) {
				if s.skip("ON") {
					database = s.qualifier()
					break
				}
				s.next++
			}
			if database == "" {
				database = s.database
			}
			s.note(database)
			return
		case "INDEX":
			for s.next < len(s.tokens) {
				if s.skip("ON") {
					s.name()
					return
				}
				s.next++
			}
		case "FUNCTION", "PROCEDURE", "EVENT", "PACKAGE", "LIBRARY":
			s.skip("BODY")
			s.exists()
			s.routine(kind)
			return
		case "USER", "ROLE", "SERVER", "TABLESPACE", "LOGFILE", "UNDO", "RESOURCE", "INSTANCE":
			return // these belong to the server
		case "":
			s.next++ // a definer's name and the like
		}
	}
	s.lost = true
}

// routine consumes the name of a routine or event. A loadable function belongs to the server.
func (s *statement) routine(kind string) {
	q := s.qualifier()
	if kind == "FUNCTION" && q == "" {
		for i := s.next; i < len(s.tokens) && i < s.next+4; i++ {
			if t := s.tokens[i]; t.kind == wordToken && strings.EqualFold(t.text, "SONAME") {
				return
			}
		}
	}
	if q == "" {
		q = s.database
	}
	s.note(q)
	if kind == "EVENT" { // ALTER EVENT a.e RENAME TO b.e
		s.others()
	}
}

// others finds further tables that an ALTER changes: the new name, and those that exchange
// places with a partition.
func (s *statement) others() {
	depth := 0
	for s.next < len(s.tokens) {
		t := s.peek()
		s.next++
		switch {
		case t.kind == otherToken && t.text == "(":
			depth++
		case t.kind == otherToken && t.text == ")":
			depth--
		case depth > 0 || t.kind != wordToken:
		case strings.EqualFold(t.text, "RENAME"):
			if s.skip("COLUMN", "INDEX", "KEY", "CONSTRAINT", "FOREIGN") {
				continue
			}
			s.skip("TO", "AS")
			s.name()
		case strings.EqualFold(t.text, "WITH") || strings.EqualFold(t.text, "CONVERT") || strings.EqualFold(t.text, "TO"):
			if s.skip("TABLE") {
				s.name()
			}
		case strings.EqualFold(t.text, "DO"): // the body of an event
			return
		}
	}
}

// sqlToken is a token of a statement.
type sqlToken struct {
	kind    tokenKind
	text    string // a quoted name is without its quotes
	literal string // content of a quoted string
	at, end int    // position in the statement
}

type tokenKind int

const (
	otherToken tokenKind = iota // one character, or a literal
	wordToken
	nameToken // quoted
)

// tokens splits a statement. The contents of executable comments are part of it.
func tokens(sql string, ansi bool) []sqlToken {
	var out []sqlToken
	for i := 0; i < len(sql); {
		c := sql[i]
		rest := sql[i:]
		switch {
		case strings.HasPrefix(rest, "/*!") || strings.HasPrefix(rest, "/*M!"):
			i += strings.IndexByte(rest, '!') + 1
			for i < len(sql) && sql[i] >= '0' && sql[i] <= '9' {
				i++
			}
		case strings.HasPrefix(rest, "*/"):
			i += 2
		case strings.HasPrefix(rest, "/*"):
			i = until(sql, i+2, "*/")
		case c == '#', strings.HasPrefix(rest, "--") && (len(rest) == 2 || rest[2] <= ' '):
			i = until(sql, i, "\n")
		case c <= ' ':
			i++
		case c == '`' || c == '"' || c == '\'':
			text, end := quoted(sql, i)
			t := sqlToken{kind: nameToken, text: text, at: i, end: end}
			if c == '\'' || c == '"' && !ansi {
				t.kind, t.text, t.literal = otherToken, "'", text
			}
			out = append(out, t)
			i = end
		case inWord(c):
			end := i
			for end < len(sql) && inWord(sql[end]) {
				end++
			}
			out = append(out, sqlToken{kind: wordToken, text: sql[i:end], at: i, end: end})
			i = end
		default:
			out = append(out, sqlToken{kind: otherToken, text: sql[i : i+1], at: i, end: i + 1})
			i++
		}
	}
	return out
}

func inWord(c byte) bool {
	return c == '_' || c == '$' || c >= 0x80 || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// until returns where a text after i ends.
func until(sql string, i int, end string) int {
	if n := strings.Index(sql[min(i, len(sql)):], end); n >= 0 {
		return i + n + len(end)
	}
	return len(sql)
}

// quoted returns the content of quotes, and where they end.
func quoted(sql string, i int) (string, int) {
	q := sql[i]
	var b strings.Builder
	for i++; i < len(sql); i++ {
		switch {
		case sql[i] == '\\' && q != '`' && i+1 < len(sql):
			i++
			b.WriteByte(sql[i])
		case sql[i] != q:
			b.WriteByte(sql[i])
		case i+1 < len(sql) && sql[i+1] == q:
			i++
			b.WriteByte(q)
		default:
			return b.String(), i + 1
		}
	}
	return b.String(), len(sql)
}
