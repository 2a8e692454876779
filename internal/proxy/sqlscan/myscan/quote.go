package myscan

import "strings"

// userVariable returns the name of a user variable without @ and quotes.
func userVariable(text string, mode Mode) string {
	text = text[1:]
	if text != "" && (text[0] == '\'' || text[0] == '"' && !mode.AnsiQuotes) {
		name, _ := unquoteString(text, mode)
		return name
	}
	return unquote(text)
}

// unquoteString returns the content of a literal '...' or "...". ok is false if it is not
// closed.
func unquoteString(literal string, mode Mode) (content string, ok bool) {
	quote := literal[0]
	if len(literal) < 2 || literal[len(literal)-1] != quote {
		return "", false
	}
	literal = literal[1 : len(literal)-1]
	escapes := !mode.NoBackslashEscapes
	if strings.IndexByte(literal, quote) < 0 && (!escapes || strings.IndexByte(literal, '\\') < 0) {
		return literal, true
	}
	b := make([]byte, 0, len(literal))
	for i := 0; i < len(literal); i++ {
		c := literal[i]
		switch {
		case c == quote:
			i++ // the second of two
		case c == '\\' && escapes:
			if i++; i == len(literal) {
				return "", false
			}
			if b, c = escaped(b, literal[i]); c == 0 && literal[i] != '0' {
				continue
			}
		}
		b = append(b, c)
	}
	return string(b), true
}

// escaped returns the byte that "\" and c stand for. It appends the escapes of LIKE patterns,
// which keep their backslash, to b, and returns 0.
func escaped(b []byte, c byte) ([]byte, byte) {
	switch c {
	case '0':
		return b, 0
	case 'b':
		return b, '\b'
	case 'n':
		return b, '\n'
	case 'r':
		return b, '\r'
	case 't':
		return b, '\t'
	case 'Z':
		return b, 26
	case '%', '_':
		return append(b, '\\', c), 0
	}
	return b, c
}

// unquote returns an identifier without its quotes. It allocates only if the identifier
// contains its quote.
func unquote(name string) string {
	if len(name) < 2 {
		return name
	}
	quote := name[0]
	if quote != '`' && quote != '"' {
		return name
	}
	name = name[1:]
	if name[len(name)-1] == quote {
		name = name[:len(name)-1]
	}
	if strings.IndexByte(name, quote) < 0 {
		return name
	}
	return strings.ReplaceAll(name, string([]byte{quote, quote}), string(quote))
}
