package consensus

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A log entry contains all operations of one round, because the engine's cost is per entry:
//
//	version  byte 1, or 2 and the format of the cluster as a uvarint
//	round    uvarint   number of the round in its leader's term
//	time     varint    the leader's clock, Unix nanoseconds, never backwards in the log
//	idle     uvarint   time without a write after which a session expires, nanoseconds
//	count    uvarint
//	count × { session uvarint, seq uvarint, ack uvarint, flags byte, length uvarint, command }
//
// Session 0 is a grant of seq session ids, without a command. The idle time is in the entry
// because replicas may be configured differently, and would otherwise execute different writes.
const (
	entryVersion       = 1
	entryVersionFormat = 2
)

// Flags of an operation.
const (
	opWeak = 1 << iota // a weak write: its result is not kept
	opEnd              // not a write: the session ends and is removed
)

// leastOp is the least number of bytes of an operation. A count is checked against it before
// memory is allocated, because operations take much more memory than that.
const leastOp = 5

// op is one operation of an entry.
type op struct {
	session, seq, ack uint64
	flags             uint8
	command           []byte
}

var errEntry = errors.New("malformed log entry")

func appendEntryHead(b []byte, format, round uint64, time, idle int64, count int) []byte {
	b = appendEntryFormat(b, format)
	b = binary.AppendUvarint(b, round)
	b = binary.AppendVarint(b, time)
	b = binary.AppendUvarint(b, uint64(idle))
	return binary.AppendUvarint(b, uint64(count))
}

func (o *op) append(b []byte) []byte {
	b = binary.AppendUvarint(b, o.session)
	b = binary.AppendUvarint(b, o.seq)
	b = binary.AppendUvarint(b, o.ack)
	b = append(b, o.flags)
	b = binary.AppendUvarint(b, uint64(len(o.command)))
	return append(b, o.command...)
}

// entry is a decoded log entry. Its commands alias the entry's bytes.
type entry struct {
	format uint64
	round  uint64
	time   int64
	idle   int64
	ops    []op
}

// entryTime returns the time of an entry, 0 if the entry is malformed.
func entryTime(b []byte) int64 {
	_, b, err := cutFormat(b)
	if err != nil {
		return 0
	}
	r := reader{b: b}
	r.uvarint()
	return r.varint()
}

// decode decodes b into e and reuses e.ops.
func (e *entry) decode(b []byte) error {
	format, b, err := cutFormat(b)
	if err != nil {
		return err
	}
	e.format = format
	r := reader{b: b}
	e.round, e.time = r.uvarint(), r.varint()
	idle := r.uvarint()
	if e.idle = int64(idle); !r.bad && e.idle <= 0 {
		return fmt.Errorf("%w: sessions expire after %d ns", errEntry, idle)
	}
	count := r.uvarint()
	if count > uint64(len(r.b)/leastOp) {
		return fmt.Errorf("%w: %d operations in %d bytes", errEntry, count, len(r.b))
	}
	e.ops = e.ops[:0]
	for range count {
		o := op{session: r.uvarint(), seq: r.uvarint(), ack: r.uvarint(), flags: r.byte()}
		o.command = r.bytes()
		e.ops = append(e.ops, o)
	}
	return r.end()
}

// reader decodes values from a byte string. After the first value that is missing it returns
// zeros, and end returns an error.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) fail() {
	r.bad, r.b = true, nil
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail()
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

// bytes returns a slice that aliases the input.
func (r *reader) bytes() []byte {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) string() string { return string(r.bytes()) }

func (r *reader) end() error {
	if r.bad {
		return fmt.Errorf("%w: cut short", errEntry)
	}
	if len(r.b) > 0 {
		return fmt.Errorf("%w: %d bytes left over", errEntry, len(r.b))
	}
	return nil
}
