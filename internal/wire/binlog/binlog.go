// Package binlog reads the binary logs of MySQL and MariaDB, from a server as
// a replica does and from files. It follows the log; it does not apply it, it
// has no policy of retries, and it never writes to the server that it reads.
//
// It has three layers, and a user may stop at each:
//
//	Source   Stream (a server) or File (a log file): whole events, verified,
//	         each with its place in the log; the bytes are exactly the log's
//	Tracker  where transactions begin and end, positions, GTIDs
//	Reader   Source and Tracker with rows decoded: Begin, Rows, Commit
//
// # What is committed
//
// Servers write a transaction to the log when it commits, from a cache: what is
// rolled back is never there. So a Reader gives out rows as they come and holds
// none back, and a transaction of any size takes the memory of its largest
// event. Rows are final when Commit follows. Exceptions:
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
// The log holds values as the storage engine has them, not as SQL prints them.
// MySQL says with each table which integers are unsigned and which character
// sets columns have; MariaDB does with binlog_row_metadata=MINIMAL or FULL
// only. Where it is unknown, Value.Int64 and Value.Uint64 offer both readings,
// and BINARY(n) comes without the zero bytes at its end, which servers strip.
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
	// FlagArtificial marks what the server made up for the replica.
	FlagArtificial = 0x20
	// FlagIgnorable marks events that may be passed over where unknown.
	FlagIgnorable = 0x80
)

// ErrMalformed reports bytes that are not what their event's type says.
var ErrMalformed = errors.New("malformed binary log event")

// ErrEncrypted reports a file whose events are encrypted. Servers decrypt what
// they send: read such a log from its server.
var ErrEncrypted = errors.New("encrypted binary log")

// ErrIncident reports that the server says its log lacks something: what was
// read cannot be complete. Only a new copy of the data helps.
var ErrIncident = errors.New("the server has reported a gap in its binary log")

// ChecksumError reports an event whose CRC32 does not fit its bytes.
type ChecksumError struct {
	File      string
	Offset    int64 // of the event's first byte; in a stream: by its header
	Type      EventType
	Want, Got uint32
}

// Error names the place.
func (e *ChecksumError) Error() string {
	return fmt.Sprintf("checksum of %s event at %s:%d: the log says %08x, its bytes have %08x", e.Type, e.File, e.Offset, e.Want, e.Got)
}

// Position is a place in a server's binary log: the name of a file and an
// offset in bytes.
type Position struct {
	File string
	Pos  uint64
}

// String returns file:offset.
func (p Position) String() string { return fmt.Sprintf("%s:%d", p.File, p.Pos) }

// IsZero reports whether no position is meant.
func (p Position) IsZero() bool { return p == Position{} }

// Source yields events one by one.
type Source interface {
	// Next returns the next event, which is valid until Next is called again.
	// The error is io.EOF at the end: of the file, or of the log where the
	// stream does not wait for more.
	Next(ctx context.Context) (*Event, error)
}

// Header is what every event begins with.
type Header struct {
	Timestamp uint32 // seconds since 1970, of the statement's start; 0 if artificial
	Type      EventType
	ServerID  uint32 // where the change was made first
	Size      uint32 // bytes of the whole event, header and checksum included
	LogPos    uint32 // low 32 bits of the position behind the event; 0: not told
	Flags     uint16
}

// ParseHeader reads an event's header from the start of b.
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
	// Raw holds the bytes of the whole event, header and checksum included,
	// as the server's file has them.
	Raw []byte
	// File is the name of the log file that the event belongs to.
	File string
	// End is the offset in File behind the event; 0 for one that is in no file.
	End uint64

	tail int // bytes at the end of Raw that are not the body
}

// Body returns what stands between the header and the checksum. It aliases Raw.
func (e *Event) Body() []byte { return e.Raw[HeaderLen : len(e.Raw)-e.tail] }

// Stored reports whether the event is in the server's file. Heartbeats, the
// artificial ROTATE that names the file to come, and what a stream that begins
// inside a file is told of its beginning are not.
//
// A header without a position does not decide it: from 11.4 on MariaDB leaves
// the position out of the events inside a transaction (binlog_legacy_event_pos).
// Only events about the log itself are sent so when they are not in the file.
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

// Start is the offset in File of the event's first byte; 0 for one that is in
// no file.
func (e *Event) Start() uint64 {
	if e.End < uint64(e.Size) {
		return 0
	}
	return e.End - uint64(e.Size)
}
