package mywire

import (
	"bytes"
	"encoding/binary"
)

// First bytes of payloads that a server sends.
const (
	headerOK       = 0x00
	headerAuthMore = 0x01
	headerInfile   = 0xfb
	headerEOF      = 0xfe // also the OK that ends a result, and AuthSwitchRequest
	headerError    = 0xff
)

// OK is the content of an OK packet. As a view, its slices alias the payload.
type OK struct {
	AffectedRows uint64
	LastInsertID uint64
	Status       Status
	Warnings     uint16
	Info         []byte // such as "Records: 3  Duplicates: 0  Warnings: 0"
	// State has session state changes, for ParseChange. It is empty unless Status has
	// StatusSessionState.
	State []byte
}

// IsOK reports whether the payload is an OK packet that starts with 0x00.
func IsOK(payload []byte) bool { return len(payload) >= 7 && payload[0] == headerOK }

// IsError reports whether the payload is an ERR packet.
func IsError(payload []byte) bool { return len(payload) >= 3 && payload[0] == headerError }

// IsEOF reports whether the payload is an EOF packet. An OK that ends a result under
// CapDeprecateEOF is not one, see IsEnd.
func IsEOF(payload []byte) bool { return len(payload) == 5 && payload[0] == headerEOF }

// IsEnd reports whether the payload ends the rows of a result: an EOF, or under CapDeprecateEOF
// an OK that starts with 0xFE. A row may start with 0xFE too, but then its first value has 16
// MiB or more: the row is at least 9 bytes long without CapDeprecateEOF, and at least
// MaxPayload bytes long with it.
func IsEnd(payload []byte, caps Caps) bool {
	if len(payload) < 5 || payload[0] != headerEOF {
		return false
	}
	if caps.Has(CapDeprecateEOF) {
		return len(payload) >= 7 && len(payload) < MaxPayload
	}
	return len(payload) < 9
}

// ParseOK reads an OK packet, whether it starts with 0x00 or with 0xFE.
func ParseOK(payload []byte, caps Caps) (OK, error) {
	var ok OK
	if len(payload) < 7 || (payload[0] != headerOK && payload[0] != headerEOF) {
		return ok, ErrMalformed
	}
	var fine bool
	rest := payload[1:]
	if ok.AffectedRows, rest, fine = ParseLenenc(rest); !fine {
		return ok, ErrMalformed
	}
	if ok.LastInsertID, rest, fine = ParseLenenc(rest); !fine || len(rest) < 4 {
		return ok, ErrMalformed
	}
	ok.Status = Status(binary.LittleEndian.Uint16(rest))
	ok.Warnings = binary.LittleEndian.Uint16(rest[2:])
	rest = rest[4:]
	if len(rest) == 0 {
		return ok, nil
	}
	info, tail, fine := ParseLenencString(rest)
	if !caps.Has(CapSessionTrack) {
		// Documented as the rest of the packet; but servers send a length before it, and
		// libmysqlclient expects that.
		if ok.Info = info; !fine || len(tail) != 0 {
			ok.Info = rest
		}
		return ok, nil
	}
	if !fine {
		return ok, ErrMalformed
	}
	ok.Info = info
	if ok.Status&StatusSessionState == 0 || len(tail) == 0 {
		if len(tail) != 0 {
			return ok, ErrMalformed
		}
		return ok, nil
	}
	if ok.State, rest, fine = ParseLenencString(tail); fine && len(rest) == 0 {
		return ok, nil
	}
	// MariaDB reserves room for the length by a NUL in the character set of the current
	// database, which has 2 or 4 bytes in UCS-2, UTF-16 and UTF-32. The length starts at the
	// last of these bytes.
	for _, more := range []int{1, 3} {
		if len(tail) <= more || bytes.Count(tail[:more], []byte{0}) < more {
			break
		}
		if ok.State, rest, fine = ParseLenencString(tail[more:]); fine && len(rest) == 0 {
			return ok, nil
		}
	}
	return ok, ErrMalformed
}

// AppendOK appends an OK packet as the answer to a command. It includes the session state under
// CapSessionTrack only, and sets its status flag accordingly.
func AppendOK(dst []byte, seq byte, caps Caps, ok *OK) []byte {
	return appendOK(dst, seq, headerOK, caps, ok)
}

// AppendEnd appends the packet that ends the columns or the rows of a result: an EOF or, under
// CapDeprecateEOF, an OK that starts with 0xFE. (Under CapDeprecateEOF no packet separates
// columns and rows.)
func AppendEnd(dst []byte, seq byte, caps Caps, ok *OK) []byte {
	if caps.Has(CapDeprecateEOF) {
		return appendOK(dst, seq, headerEOF, caps, ok)
	}
	return AppendEOF(dst, seq, ok.Warnings, ok.Status&^StatusSessionState)
}

func appendOK(dst []byte, seq, first byte, caps Caps, ok *OK) []byte {
	dst, at := begin(dst, seq)
	dst = AppendLenenc(AppendLenenc(append(dst, first), ok.AffectedRows), ok.LastInsertID)
	status := ok.Status &^ StatusSessionState
	withState := caps.Has(CapSessionTrack) && len(ok.State) > 0
	if withState {
		status |= StatusSessionState
	}
	dst = binary.LittleEndian.AppendUint16(dst, uint16(status))
	dst = binary.LittleEndian.AppendUint16(dst, ok.Warnings)
	if len(ok.Info) > 0 || withState {
		dst = AppendLenencString(dst, ok.Info)
	}
	if withState {
		dst = AppendLenencString(dst, ok.State)
	}
	return end(dst, at)
}

// AppendEOF appends an EOF packet.
func AppendEOF(dst []byte, seq byte, warnings uint16, status Status) []byte {
	dst = append(AppendHeader(dst, 5, seq), headerEOF)
	dst = binary.LittleEndian.AppendUint16(dst, warnings)
	return binary.LittleEndian.AppendUint16(dst, uint16(status))
}

// ParseEOF reads an EOF packet.
func ParseEOF(payload []byte) (warnings uint16, status Status, err error) {
	if !IsEOF(payload) {
		return 0, 0, ErrMalformed
	}
	return binary.LittleEndian.Uint16(payload[1:]), Status(binary.LittleEndian.Uint16(payload[3:])), nil
}

// ClearStatus clears flags in the status of an OK or EOF, in place. It does not change other
// payloads, except a row that looks like one of them: the caller must know what it has.
func ClearStatus(payload []byte, caps Caps, flags Status) {
	at := 3
	switch {
	case IsEOF(payload):
	case IsOK(payload), caps.Has(CapDeprecateEOF) && IsEnd(payload, caps):
		_, rest, ok := ParseLenenc(payload[1:])
		if ok {
			_, rest, ok = ParseLenenc(rest)
		}
		if !ok || len(rest) < 2 {
			return
		}
		at = len(payload) - len(rest)
	default:
		return
	}
	status := Status(binary.LittleEndian.Uint16(payload[at:])) &^ flags
	binary.LittleEndian.PutUint16(payload[at:], uint16(status))
}

// Kinds of session state change.
const (
	TrackSystemVariables            = 0 // Name and Value of a variable
	TrackSchema                     = 1 // Value is the current database
	TrackStateChange                = 2 // Value "1": something of the session has changed
	TrackGTIDs                      = 3 // Value is the GTIDs of the committed transaction
	TrackTransactionCharacteristics = 4 // Value is SQL that starts such a transaction
	TrackTransactionState           = 5 // Value is 8 letters, such as "T_______"
)

// Change is one session state change, a view into OK.State.
type Change struct {
	Kind  byte   // one of the Track constants, or one that weir does not know
	Name  []byte // of the system variable, else empty
	Value []byte // see the Track constants; all of the data if the kind is unknown
}

// ParseChange parses the change at the start of state, and returns the rest: call it until rest
// is empty.
func ParseChange(state []byte) (c Change, rest []byte, err error) {
	if len(state) == 0 {
		return c, nil, ErrMalformed
	}
	data, rest, ok := ParseLenencString(state[1:])
	if !ok {
		return c, nil, ErrMalformed
	}
	c.Kind = state[0]
	switch c.Kind {
	case TrackSystemVariables:
		if c.Name, data, ok = ParseLenencString(data); !ok {
			return c, nil, ErrMalformed
		}
	case TrackGTIDs:
		if len(data) == 0 { // its first byte is the encoding of the rest
			return c, nil, ErrMalformed
		}
		data = data[1:]
	case TrackSchema, TrackTransactionCharacteristics, TrackTransactionState:
	default: // TrackStateChange among them, which has no length of its own
		c.Value = data
		return c, rest, nil
	}
	if c.Value, data, ok = ParseLenencString(data); !ok || len(data) != 0 {
		return c, nil, ErrMalformed
	}
	return c, rest, nil
}

// AppendChange appends a change to session state, for OK.State.
func AppendChange(dst []byte, c Change) []byte {
	var body []byte
	switch c.Kind {
	case TrackSystemVariables:
		body = AppendLenencString(AppendLenencString(nil, c.Name), c.Value)
	case TrackGTIDs:
		body = AppendLenencString([]byte{0}, c.Value)
	case TrackSchema, TrackTransactionCharacteristics, TrackTransactionState:
		body = AppendLenencString(nil, c.Value)
	default:
		body = c.Value
	}
	return AppendLenencString(append(dst, c.Kind), body)
}
