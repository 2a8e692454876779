// Package binlog reads the binary logs of MySQL and MariaDB, from a server like a replica or
// from files. It does not apply the log, does not retry, and never writes to the server that it
// reads.
//
// It has three layers, each of which can be used by itself:
//
//	Source   Stream (a server) or File (a log file): whole events, verified,
//	         each with its place in the log; the bytes are exactly the log's
//	Tracker  where transactions begin and end, positions, GTIDs
//	Reader   Source and Tracker with rows decoded: Begin, Rows, Commit
//
// # What is committed
//
// Servers write a transaction to the log when it commits, from a cache: the log does not have
// what was rolled back. So a Reader returns rows as they come, without buffering a transaction,
// and a transaction of any size takes the memory of its largest event. Rows are final when
// Commit follows. Exceptions:
//
//   - the connection ends inside a transaction: it comes again, whole, from the
//     position of the last Commit;
//   - the server crashed while it wrote: the Reader says Rollback;
//   - non-transactional tables were changed in a transaction that was rolled
//     back: their rows did change, the group ends in Rollback, or holds a
//     ROLLBACK TO savepoint as a statement;
//   - a session has sql_log_bin switched off: nothing of it is in the log;
//   - a transaction is an XA one: its rows end in Prepare, and a later
//     transaction holds the statement XA COMMIT or XA ROLLBACK with its XID.
//
// # Values
//
// The log has values as the storage engine stores them, not as SQL prints them. MySQL includes
// with each table which integers are unsigned and which character sets columns have; MariaDB
// does so only with binlog_row_metadata=MINIMAL or FULL. If it is unknown, Value.Int64 and
// Value.Uint64 offer both interpretations, and BINARY(n) lacks trailing zero bytes, which
// servers strip.
package binlog

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
)

// Magic is what every binary log file begins with.
const Magic = "\xfebin"

// HeaderLen is the length in bytes of every event's header.
const HeaderLen = 19

// Flags of events.
const (
	// FlagInUse is set in the format description of a file that was not closed.
	FlagInUse = 0x01
	// FlagArtificial marks events that the server generated for the replica.
	FlagArtificial = 0x20
	// FlagIgnorable marks events that may be skipped if their type is unknown.
	FlagIgnorable = 0x80
)

// ErrMalformed says that an event does not have the format of its type.
var ErrMalformed = errors.New("malformed binary log event")

// ErrEncrypted says that the events of a file are encrypted. Servers decrypt what they send:
// read such a log from its server.
var ErrEncrypted = errors.New("encrypted binary log")

// ErrIncident says that the server has reported a gap in its log: what was read is not
// complete, and a new copy of the data is needed.
var ErrIncident = errors.New("the server has reported a gap in its binary log")

// ChecksumError says that the CRC32 of an event does not match its bytes.
type ChecksumError struct {
	File      string
	Offset    int64 // of the event's first byte; in a stream: by its header
	Type      EventType
	Want, Got uint32
}

// Error returns the checksums and the position of the event.
func (e *ChecksumError) Error() string {
	return fmt.Sprintf("checksum of %s event at %s:%d: the log says %08x, its bytes have %08x", e.Type, e.File, e.Offset, e.Want, e.Got)
}

// Position is a position in a server's binary log: the name of a file and an offset in bytes.
type Position struct {
	File string
	Pos  uint64
}

// String returns file:offset.
func (p Position) String() string { return fmt.Sprintf("%s:%d", p.File, p.Pos) }

// IsZero reports whether p is the zero Position.
func (p Position) IsZero() bool { return p == Position{} }

// Source yields events one by one.
type Source interface {
	// Next returns the next event, which is valid until Next is called again. The error is
	// io.EOF at the end: of the file, or of the log if the stream does not wait for more.
	Next(ctx context.Context) (*Event, error)
}

// Header is the beginning of every event.
type Header struct {
	Timestamp uint32 // seconds since 1970, of the statement's start; 0 if artificial
	Type      EventType
	ServerID  uint32 // the server where the change was made first
	Size      uint32 // bytes of the whole event, header and checksum included
	LogPos    uint32 // low 32 bits of the position after the event; 0: unknown
	Flags     uint16
}

// ParseHeader parses an event's header at the start of b.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderLen {
		return Header{}, fmt.Errorf("header of %d bytes: %w", len(b), ErrMalformed)
	}
	h := Header{
		Timestamp: binary.LittleEndian.Uint32(b),
		Type:      EventType(b[4]),
		ServerID:  binary.LittleEndian.Uint32(b[5:]),
		Size:      binary.LittleEndian.Uint32(b[9:]),
		LogPos:    binary.LittleEndian.Uint32(b[13:]),
		Flags:     binary.LittleEndian.Uint16(b[17:]),
	}
	if h.Size < HeaderLen {
		return Header{}, fmt.Errorf("%s event of %d bytes: %w", h.Type, h.Size, ErrMalformed)
	}
	return h, nil
}

// Event is one event of a log.
type Event struct {
	Header
	// Raw holds the bytes of the whole event, including header and checksum, as in the server's
	// file.
	Raw []byte
	// File is the name of the log file that the event belongs to.
	File string
	// End is the offset in File after the event; 0 for an event that is in no file.
	End uint64

	tail int // length of the checksum at the end of Raw
}

// Body returns the bytes between the header and the checksum. It aliases Raw.
func (e *Event) Body() []byte { return e.Raw[HeaderLen : len(e.Raw)-e.tail] }

// Stored reports whether the event is in the server's file. Not in the file are heartbeats, the
// artificial ROTATE that names the next file, and the events that describe the beginning of a
// file to a stream that starts inside it.
//
// A header without a position does not decide it: since 11.4 MariaDB omits the position of
// events inside a transaction (binlog_legacy_event_pos). Only events about the log itself are
// sent without one if they are not in the file.
func (e *Event) Stored() bool {
	if e.Flags&FlagArtificial != 0 {
		return false
	}
	switch e.Type {
	case HeartbeatEvent, HeartbeatV2Event:
		return false
	case FormatDescriptionEvent, RotateEvent, PreviousGTIDsEvent, MariaGTIDListEvent, StartEncryptionEvent:
		return e.LogPos != 0
	}
	return true
}

// Start returns the offset in File of the event's first byte; 0 for an event that is in no
// file.
func (e *Event) Start() uint64 {
	if e.End < uint64(e.Size) {
		return 0
	}
	return e.End - uint64(e.Size)
}
