package postgres

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
)

// maxStatement is the maximum length of one statement of a script, in bytes: the server accepts
// no message of more than 1 GiB.
const maxStatement = 1 << 30

// Statements yields the statements of a script as psql would send them, without semicolons. It
// skips comments before a statement and psql's own commands (\restrict and the like, on lines
// of their own). A statement may contain semicolons in strings, names, comments, dollar quotes
// and parentheses; standard_conforming_strings is on.
func Statements(r io.Reader) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		s := &splitter{r: bufio.NewReaderSize(r, 64<<10)}
		for {
			text, err := s.next()
			if err != nil && !errors.Is(err, io.EOF) {
				yield("", fmt.Errorf("read statement: %w", err)) // text may be incomplete
				return
			}
			if text != "" && !yield(text, nil) || err != nil {
				return
			}
		}
	}
}

// splitter reads one statement after the other.
type splitter struct {
	r *bufio.Reader
	b strings.Builder
}

// next returns the next statement, and io.EOF with the last one.
func (s *splitter) next() (string, error) {
	s.b.Reset()
	parens := 0
	for {
		c, err := s.r.ReadByte()
		if err != nil {
			return strings.TrimSpace(s.b.String()), err
		}
		if s.b.Len() > maxStatement {
			return "", errors.New("a statement of more than 1 GiB")
		}
		switch {
		case s.b.Len() == 0 && (c == ' ' || c == '\n' || c == '\t' || c == '\r'):
			continue
		case s.b.Len() == 0 && c == '\\':
			if _, err := s.r.ReadString('\n'); err != nil {
				return "", err
			}
			continue
		case c == ';' && parens == 0:
			return strings.TrimSpace(s.b.String()), nil
		case c == '(':
			parens++
		case c == ')':
			parens--
		}
		if err := s.take(c); err != nil {
			return "", err
		}
	}
}

// take reads one byte and, if it begins something that may contain a semicolon, all of that.
func (s *splitter) take(c byte) error {
	switch c {
	case '\'':
		escapes := s.endsWithE()
		s.b.WriteByte(c)
		return s.quoted('\'', escapes)
	case '"':
		s.b.WriteByte(c)
		return s.quoted('"', false)
	case '-':
		if s.peek() == '-' {
			return s.lineComment()
		}
	case '/':
		if s.peek() == '*' {
			return s.blockComment()
		}
	case '$':
		if !s.endsWithName() {
			return s.dollar()
		}
	}
	s.b.WriteByte(c)
	return nil
}

func (s *splitter) peek() byte {
	b, err := s.r.Peek(1)
	if err != nil {
		return 0
	}
	return b[0]
}

// endsWithE reports whether the text so far ends with the E of E'…'.
func (s *splitter) endsWithE() bool {
	t := s.b.String()
	n := len(t)
	if n == 0 || t[n-1] != 'E' && t[n-1] != 'e' {
		return false
	}
	return n == 1 || !nameByte(t[n-2])
}

func (s *splitter) endsWithName() bool {
	t := s.b.String()
	return t != "" && nameByte(t[len(t)-1])
}

func nameByte(c byte) bool {
	return c == '_' || c == '$' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

// quoted reads up to the closing quote. A doubled quote is read as two adjacent strings, which
// has the same result.
func (s *splitter) quoted(quote byte, escapes bool) error {
	for {
		c, err := s.r.ReadByte()
		if err != nil {
			return inside(err)
		}
		s.b.WriteByte(c)
		if c == quote {
			if escapes && s.peek() == quote { // the second half has escapes, too
				_, _ = s.r.ReadByte() // peeked
				s.b.WriteByte(quote)
				continue
			}
			return nil
		}
		if c == '\\' && escapes {
			if c, err = s.r.ReadByte(); err != nil {
				return inside(err)
			}
			s.b.WriteByte(c)
		}
		if s.b.Len() > maxStatement {
			return errors.New("a statement of more than 1 GiB")
		}
	}
}

// lineComment skips a comment whose first dash was read.
func (s *splitter) lineComment() error {
	for {
		c, err := s.r.ReadByte()
		if errors.Is(err, io.EOF) {
			return nil // the next read reports it
		}
		if err != nil {
			return err
		}
		if c == '\n' {
			if s.b.Len() > 0 {
				s.b.WriteByte('\n')
			}
			return nil
		}
	}
}

// blockComment skips a comment whose slash was read. Comments nest.
func (s *splitter) blockComment() error {
	depth := 0
	previous := byte('/')
	for {
		c, err := s.r.ReadByte()
		if err != nil {
			return inside(err)
		}
		switch {
		case previous == '/' && c == '*':
			depth++
			c = 0
		case previous == '*' && c == '/':
			if depth--; depth == 0 {
				if s.b.Len() > 0 {
					s.b.WriteByte(' ')
				}
				return nil
			}
			c = 0
		}
		previous = c
	}
}

// dollar reads a dollar quote, or only a dollar sign, whose first byte was read.
func (s *splitter) dollar() error {
	tag := "$"
	s.b.WriteByte('$')
	for {
		c := s.peek()
		if c != '$' && (!nameByte(c) || len(tag) == 1 && c >= '0' && c <= '9') {
			return nil
		}
		_, _ = s.r.ReadByte() // peeked
		s.b.WriteByte(c)
		tag += string([]byte{c})
		if c == '$' {
			break
		}
		if len(tag) > 64 {
			return nil
		}
	}
	begin := s.b.Len()
	for {
		c, err := s.r.ReadByte()
		if err != nil {
			return inside(err)
		}
		s.b.WriteByte(c)
		if c == '$' && s.b.Len()-begin >= len(tag) && strings.HasSuffix(s.b.String(), tag) {
			return nil
		}
		if s.b.Len() > maxStatement {
			return errors.New("a statement of more than 1 GiB")
		}
	}
}

// inside returns the error for a script that ends inside a string, a comment or the like.
func inside(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
