package sight

import (
	"encoding/hex"
	"time"
)

// A Trace is the span of an application that a statement belongs to.
type Trace struct {
	ID     [16]byte
	Parent [8]byte
}

// traceparentLen is the length of a traceparent of version 00.
const traceparentLen = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")

// ParseTraceparent reads a traceparent as W3C Trace Context has it. ok is false if it
// is none, or not sampled. Of later versions than 00 it reads what that has.
func ParseTraceparent(s string) (t Trace, ok bool) {
	if len(s) < traceparentLen || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return t, false
	}
	var version, flags [1]byte
	for _, f := range []struct {
		to   []byte
		from string
	}{{version[:], s[:2]}, {t.ID[:], s[3:35]}, {t.Parent[:], s[36:52]}, {flags[:], s[53:55]}} {
		if !lowerHex(f.from) {
			return t, false
		}
		if _, err := hex.Decode(f.to, []byte(f.from)); err != nil {
			return t, false
		}
	}
	switch {
	case version[0] == 0xff, version[0] == 0 && len(s) != traceparentLen, len(s) > traceparentLen && s[traceparentLen] != '-':
		return t, false
	case t.ID == [16]byte{}, t.Parent == [8]byte{}:
		return t, false
	}
	return t, flags[0]&1 != 0
}

// lowerHex reports whether all digits are those that Trace Context allows.
func lowerHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// A Statement is one statement that was answered, as the slow log and spans tell of it.
type Statement struct {
	Engine, Server string
	Database, User string
	Client, App    string
	Verb, Shape    string // Shape is the text without literals
	Fingerprint    uint64
	Site           string // where in a program it came from, as file:line; "" if no hint tells
	Text           string // as it was sent; "" unless that is to be told
	Code           string // of the error, SQLSTATE or number; "" if there was none
	Run            Run
	End            time.Time
	Trace          *Trace // nil without a span
}
