package sqlscan

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

// A Word is a word, a quoted name or literal without its quotes, or a sign.
type Word struct {
	Text   string // in lower case, unless it was quoted
	Quoted bool
}

// Is reports whether w is a keyword, given in lower case.
func (w Word) Is(keyword string) bool { return !w.Quoted && w.Text == keyword }

// Words divides a text into statements and words. The texts that it is for contain names and
// simple literals, such as most commands that change the catalogue; anything else is returned
// character by character. See Divisible.
type Words struct {
	rest string
	size int
	done bool
}

// MaxWords is how much of a text Words reads, in bytes.
const MaxWords = 64 << 10

// WordsOf returns the words of the beginning of a text.
func WordsOf(sql string) Words {
	sql = sql[:min(len(sql), MaxWords)]
	return Words{rest: sql, size: len(sql)}
}

// Divisible reports whether Words finds the ends of all literals of a text, and so of its
// statements.
func Divisible(sql string) bool { return len(sql) <= MaxWords && !strings.ContainsAny(sql, `\$`) }

// Done reports whether the text has no further statement.
func (t *Words) Done() bool { return t.done }

// At is how many bytes of the text have been read.
func (t *Words) At() int { return t.size - len(t.rest) }

// Next returns the next word; ok is false at a semicolon and at the end.
func (t *Words) Next() (w Word, ok bool) {
	for {
		t.rest = strings.TrimLeft(t.rest, " \t\r\n\f\v")
		switch {
		case t.rest == "":
			t.done = true
			return Word{}, false
		case strings.HasPrefix(t.rest, "--"):
			end := strings.IndexAny(t.rest, "\n\r")
			if end < 0 {
				end = len(t.rest)
			}
			t.rest = t.rest[end:]
		case strings.HasPrefix(t.rest, "/*"):
			t.comment()
		default:
			return t.word()
		}
	}
}

// comment skips a comment and the comments in it.
func (t *Words) comment() {
	depth := 0
	for t.rest != "" {
		switch {
		case strings.HasPrefix(t.rest, "/*"):
			depth++
			t.rest = t.rest[2:]
		case strings.HasPrefix(t.rest, "*/"):
			t.rest = t.rest[2:]
			if depth--; depth == 0 {
				return
			}
		default:
			t.rest = t.rest[1:]
		}
	}
}

func (t *Words) word() (Word, bool) {
	switch c := t.rest[0]; {
	case c == ';':
		t.rest = t.rest[1:]
		return Word{}, false
	case c == '"' || c == '\'':
		var b strings.Builder
		i := 1
		for ; i < len(t.rest); i++ {
			if t.rest[i] == c {
				if i+1 == len(t.rest) || t.rest[i+1] != c {
					break
				}
				i++
			}
			b.WriteByte(t.rest[i])
		}
		t.rest = t.rest[min(i+1, len(t.rest)):]
		return Word{Text: b.String(), Quoted: true}, true
	case lexicon.Fold[c] != 0:
		i := 1
		for i < len(t.rest) && lexicon.Fold[t.rest[i]] != 0 {
			i++
		}
		w := Word{Text: lexicon.Lower(t.rest[:i])}
		t.rest = t.rest[i:]
		return w, true
	default:
		w := Word{Text: t.rest[:1]}
		t.rest = t.rest[1:]
		return w, true
	}
}

// Name reads a name that may have several parts, after words such as IF EXISTS,
// and returns its last part; "" if it is unclear.
func (t *Words) Name() string {
	w, ok := t.Next()
	for ok && (w.Is("if") || w.Is("not") || w.Is("exists") || w.Is("only")) {
		w, ok = t.Next()
	}
	name := ""
	for ok {
		if !w.Quoted && lexicon.Fold[w.Text[0]] == 0 {
			return ""
		}
		unicode := w.Is("u")
		name = w.Text
		if w, ok = t.Next(); ok && unicode && w.Text == "&" {
			return "" // U&"..."
		}
		if !ok || w.Quoted || w.Text != "." {
			break
		}
		w, ok = t.Next()
	}
	return strings.Clone(name[:min(len(name), maxName)])
}
