package resp

import (
	"bytes"
	"fmt"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Limits of what a client may send, checked before memory is allocated for it.
const (
	maxInline  = 64 << 10      // of a line: an inline command, or the header of a bulk string
	maxBulk    = wire.MaxValue // of an argument; a longer one is refused after it was read, if there is room for it
	redisBulk  = 512 << 20     // the limit of Redis, which clients may rely on
	maxArgs    = 1 << 20       // arguments of a command
	maxRequest = 17 << 20      // a whole command, with its framing
	loginArgs  = 10            // arguments before login, as in Redis
	loginBulk  = 16 << 10      // one argument before login, as in Redis
	readSize   = 16 << 10      // of a new connection's buffer
	keepSize   = 256 << 10     // a larger buffer is released when it is empty
)

// protocolError is sent to a client before it is disconnected.
type protocolError string

func (e protocolError) Error() string { return "Protocol error: " + string(e) }

// parser parses the commands of a connection. It continues a partial command when more bytes
// arrive, and parses no argument twice. The arguments that it returns alias its buffer until
// room is called.
type parser struct {
	buf      []byte // bytes that were read; those before start are consumed
	start    int    // start of the current command
	pos      int    // the next position to parse
	left     int    // missing arguments of the current command, 0 between commands
	bulk     int    // length of the current argument, -1: its header comes first
	spans    []span // the arguments so far
	args     [][]byte
	loggedIn bool // the client has logged in
}

// span is the position of an argument relative to start.
type span struct{ from, to int }

func newParser() parser { return parser{bulk: -1, buf: make([]byte, 0, readSize)} }

// room returns a buffer to read into, never empty. It moves unconsumed bytes to the front,
// which invalidates arguments returned before. The buffer grows with what arrives, not with
// announced lengths.
func (p *parser) room() []byte {
	if p.start > 0 {
		n := copy(p.buf, p.buf[p.start:])
		p.buf, p.pos, p.start = p.buf[:n], p.pos-p.start, 0
	}
	if cap(p.buf) > keepSize && len(p.buf) < readSize {
		p.buf = append(make([]byte, 0, readSize), p.buf...)
	}
	if cap(p.buf)-len(p.buf) < readSize/4 {
		p.buf = append(make([]byte, 0, 2*cap(p.buf)), p.buf...)
	}
	return p.buf[len(p.buf):cap(p.buf)]
}

// wrote says that n bytes were read into room.
func (p *parser) wrote(n int) { p.buf = p.buf[:len(p.buf)+n] }

// next returns the arguments of the next command, at least one, or nil if more bytes are
// needed. size is the number of bytes of the command. The next call reuses the slice. An error
// is a protocolError, and ends the connection.
func (p *parser) next() (args [][]byte, size int, err error) {
	for {
		if p.left == 0 {
			if p.pos == len(p.buf) {
				return nil, 0, nil
			}
			if p.buf[p.pos] != '*' {
				args, ok, err := p.inline()
				if len(args) > 0 || !ok || err != nil {
					return args, p.take(ok), err
				}
				p.take(true)
				continue
			}
			if ok, err := p.multibulk(); !ok || err != nil {
				return nil, 0, err
			}
			if p.left == 0 { // *0 and *-1 are empty commands
				p.take(true)
				continue
			}
		}
		for p.left > 0 {
			if ok, err := p.argument(); !ok || err != nil {
				return nil, 0, err
			}
		}
		p.args = p.args[:0]
		for _, s := range p.spans {
			p.args = append(p.args, p.buf[p.start+s.from:p.start+s.to:p.start+s.to])
		}
		args = p.args
		return args, p.take(true), nil
	}
}

// take ends the current command.
func (p *parser) take(done bool) (size int) {
	if !done {
		return 0
	}
	size = p.pos - p.start
	p.start = p.pos
	p.spans = p.spans[:0]
	if cap(p.spans) > 1<<12 {
		p.spans, p.args = nil, nil
	}
	return size
}

// line returns what precedes the next CR LF, or false if it has not arrived.
func (p *parser) line(what string) (line []byte, ok bool, err error) {
	i := bytes.IndexByte(p.buf[p.pos:], '\r')
	if i < 0 && len(p.buf)-p.pos > maxInline || i > maxInline {
		return nil, false, protocolError("too big " + what + " count string")
	}
	if i < 0 || p.pos+i+1 >= len(p.buf) {
		return nil, false, nil
	}
	line = p.buf[p.pos : p.pos+i]
	p.pos += i + 2
	return line, true, nil
}

// multibulk parses "*n".
func (p *parser) multibulk() (ok bool, err error) {
	line, ok, err := p.line("mbulk")
	if !ok || err != nil {
		return false, err
	}
	n, ok := parseInt(line[1:])
	switch {
	case !ok || n > maxArgs:
		return false, protocolError("invalid multibulk length")
	case n > loginArgs && !p.loggedIn:
		return false, protocolError("unauthenticated multibulk length")
	}
	p.left, p.bulk = int(max(n, 0)), -1
	return true, nil
}

// argument parses "$n" and the n bytes after it.
func (p *parser) argument() (ok bool, err error) {
	if p.bulk < 0 {
		line, ok, err := p.line("bulk")
		if !ok || err != nil {
			return false, err
		}
		if len(line) == 0 || line[0] != '$' {
			got := byte('\r')
			if len(line) > 0 {
				got = line[0]
			}
			return false, protocolError(fmt.Sprintf("expected '$', got '%c'", got))
		}
		n, ok := parseInt(line[1:])
		switch {
		case !ok || n < 0 || n > redisBulk:
			return false, protocolError("invalid bulk length")
		case n > loginBulk && !p.loggedIn:
			return false, protocolError("unauthenticated bulk length")
		case p.pos-p.start+int(n) > maxRequest:
			return false, protocolError("command is too large")
		}
		p.bulk = int(n)
	}
	end := p.pos + p.bulk
	if len(p.buf) < end+2 {
		return false, nil
	}
	if p.buf[end] != '\r' || p.buf[end+1] != '\n' {
		return false, protocolError("bulk does not end where its length says")
	}
	p.spans = append(p.spans, span{p.pos - p.start, end - p.start})
	p.pos = end + 2
	p.left--
	p.bulk = -1
	return true, nil
}

// inline parses a command that a person typed. For an empty line it returns no arguments and
// true.
func (p *parser) inline() (args [][]byte, ok bool, err error) {
	i := bytes.IndexByte(p.buf[p.pos:], '\n')
	if i < 0 && len(p.buf)-p.pos > maxInline || i > maxInline {
		return nil, false, protocolError("too big inline request")
	}
	if i < 0 {
		return nil, false, nil
	}
	line := bytes.TrimSuffix(p.buf[p.pos:p.pos+i], []byte("\r"))
	p.pos += i + 1
	args, ok = splitLine(line)
	if !ok {
		return nil, false, protocolError("unbalanced quotes in request")
	}
	if len(args) > 0 && (is(args[0], "POST") || is(args[0], "HOST:")) {
		// Any web page can make a browser send this, with commands in the body.
		return nil, false, protocolError("this is HTTP")
	}
	return args, true, nil
}

// splitLine splits a line into words, which may be quoted: "a\x00b\n" with escapes, 'it”s'
// without. It returns false if the quotes do not match.
func splitLine(line []byte) (args [][]byte, ok bool) {
	for {
		line = bytes.TrimLeft(line, " \t\r\n\v\f\x00")
		if len(line) == 0 {
			return args, true
		}
		var word []byte
		if word, line, ok = splitWord(line); !ok {
			return nil, false
		}
		args = append(args, word)
	}
}

// splitWord cuts the first word off a line that begins with one.
func splitWord(line []byte) (word, rest []byte, ok bool) {
	word = []byte{}
	for len(line) > 0 {
		switch c := line[0]; c {
		case ' ', '\t', '\r', '\n', 0:
			return word, line, true
		case '"', '\'':
			if word, line, ok = quoted(word, line[1:], c); !ok {
				return nil, nil, false
			}
			return word, line, true
		default:
			word = append(word, c)
			line = line[1:]
		}
	}
	return word, nil, true
}

// quoted appends to word what precedes the closing quote, which must end the word.
func quoted(word, line []byte, quote byte) (_, rest []byte, ok bool) {
	for len(line) > 0 {
		switch c := line[0]; {
		case c == quote:
			line = line[1:]
			return word, line, len(line) == 0 || bytes.IndexByte([]byte(" \t\r\n\v\f"), line[0]) >= 0
		case c == '\\' && len(line) > 1 && (quote == '"' || line[1] == '\''):
			var b byte
			b, line = escaped(line[1:])
			word = append(word, b)
		default:
			word = append(word, c)
			line = line[1:]
		}
	}
	return nil, nil, false
}

// escaped decodes what follows a backslash.
func escaped(line []byte) (b byte, rest []byte) {
	if line[0] == 'x' && len(line) > 2 {
		high, low := hexDigit(line[1]), hexDigit(line[2])
		if high >= 0 && low >= 0 {
			return byte(high<<4 | low), line[3:]
		}
	}
	switch line[0] {
	case 'n':
		b = '\n'
	case 'r':
		b = '\r'
	case 't':
		b = '\t'
	case 'b':
		b = '\b'
	case 'a':
		b = '\a'
	default:
		b = line[0]
	}
	return b, line[1:]
}

func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	default:
		return -1
	}
}

// parseInt parses a decimal integer as strictly as Redis: no plus sign, no leading zeros,
// nothing around it.
func parseInt(b []byte) (n int64, ok bool) {
	if len(b) == 0 || len(b) > 20 {
		return 0, false
	}
	if len(b) == 1 && b[0] == '0' {
		return 0, true
	}
	negative := b[0] == '-'
	if negative {
		b = b[1:]
	}
	if len(b) == 0 || b[0] < '1' || b[0] > '9' {
		return 0, false
	}
	var u uint64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		d := uint64(c - '0')
		if u > (1<<64-1-d)/10 {
			return 0, false
		}
		u = u*10 + d
	}
	switch {
	case negative && u <= 1<<63:
		return -int64(u), true
	case !negative && u < 1<<63:
		return int64(u), true
	default:
		return 0, false
	}
}
