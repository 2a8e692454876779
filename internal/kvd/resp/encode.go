package resp

import "strconv"

// encoder appends RESP to b, in the version of the protocol that the client has chosen: 2 or 3.
type encoder struct {
	b     []byte
	proto uint8

	// The encoder of a writer does not copy large values: they are written between the bytes of
	// b, so that there are no copies for clients that do not read.
	byReference bool
	large       []large
}

// large is a value that follows the first at bytes of b.
type large struct {
	at    int
	bytes []byte
}

func (e *encoder) head(kind byte, n int64) {
	e.b = append(e.b, kind)
	if n >= 0 && n < 10 {
		e.b = append(e.b, byte('0'+n), '\r', '\n')
		return
	}
	e.b = strconv.AppendInt(e.b, n, 10)
	e.b = append(e.b, '\r', '\n')
}

func (e *encoder) ok() { e.b = append(e.b, "+OK\r\n"...) }

// simple appends a simple string; s must not have line breaks.
func (e *encoder) simple(s string) {
	e.b = append(append(append(e.b, '+'), s...), '\r', '\n')
}

// fail appends an error, which begins with its code: "ERR", "WRONGTYPE". Line breaks become
// spaces.
func (e *encoder) fail(s string) {
	e.b = append(e.b, '-')
	for i := range len(s) {
		if c := s[i]; c == '\r' || c == '\n' {
			e.b = append(e.b, ' ')
		} else {
			e.b = append(e.b, c)
		}
	}
	e.b = append(e.b, '\r', '\n')
}

func (e *encoder) int(n int64) { e.head(':', n) }

func (e *encoder) bool(yes bool) {
	if yes {
		e.b = append(e.b, ":1\r\n"...)
	} else {
		e.b = append(e.b, ":0\r\n"...)
	}
}

func (e *encoder) bulk(v []byte) {
	e.head('$', int64(len(v)))
	e.raw(v)
	e.b = append(e.b, '\r', '\n')
}

// raw appends bytes that must not change any more.
func (e *encoder) raw(v []byte) {
	if e.byReference && len(v) >= largeSize {
		e.large = append(e.large, large{len(e.b), v})
		return
	}
	e.b = append(e.b, v...)
}

func (e *encoder) text(s string) {
	e.head('$', int64(len(s)))
	e.b = append(append(e.b, s...), '\r', '\n')
}

// verbatim appends text for people, as for INFO and CLIENT LIST.
func (e *encoder) verbatim(s string) {
	if e.proto < 3 {
		e.text(s)
		return
	}
	e.head('=', int64(len(s)+4))
	e.b = append(append(append(e.b, "txt:"...), s...), '\r', '\n')
}

func (e *encoder) null() {
	if e.proto < 3 {
		e.b = append(e.b, "$-1\r\n"...)
	} else {
		e.b = append(e.b, "_\r\n"...)
	}
}

// nullArray appends the answer of a transaction that was not executed.
func (e *encoder) nullArray() {
	if e.proto < 3 {
		e.b = append(e.b, "*-1\r\n"...)
	} else {
		e.b = append(e.b, "_\r\n"...)
	}
}

func (e *encoder) array(n int) { e.head('*', int64(n)) }

// set begins an array whose order does not matter.
func (e *encoder) set(n int) {
	if e.proto < 3 {
		e.head('*', int64(n))
	} else {
		e.head('~', int64(n))
	}
}

// dict begins n pairs of name and value.
func (e *encoder) dict(n int) {
	if e.proto < 3 {
		e.head('*', int64(2*n))
	} else {
		e.head('%', int64(n))
	}
}

// push begins a message that is not an answer; RESP3 only.
func (e *encoder) push(n int) { e.head('>', int64(n)) }
