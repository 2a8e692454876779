package outbox

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ID identifies a message permanently. It is a UUID; those of [NewID] are of
// version 7 (RFC 9562), so that ids of one process sort by time. The order of
// delivery never depends on it: clocks differ between hosts.
type ID [16]byte

var errID = errors.New("outbox: not a UUID")

// clock is the state of NewID: the last millisecond and the counter within it.
type clock struct {
	mu    sync.Mutex
	milli int64
	count uint32
}

// ids is the one generator of the process; a second one could repeat an id's
// counter, though not its random part.
var ids clock

// NewID returns a UUIDv7 that is greater than all that this process made
// before, even if the wall clock steps back. Twelve bits count within one
// millisecond (RFC 9562, section 6.2, method 1); when they run out, NewID
// increments the millisecond.
func NewID() ID {
	milli, count := ids.next(time.Now().UnixMilli())
	var id ID
	binary.BigEndian.PutUint64(id[:8], uint64(milli)<<16|0x7000|uint64(count))
	_, _ = rand.Read(id[8:]) // never fails: crypto/rand ends the process instead
	id[8] = id[8]&0x3f | 0x80
	return id
}

func (c *clock) next(now int64) (milli int64, count uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now > c.milli {
		c.milli, c.count = now, 0
		return c.milli, 0
	}
	c.count++
	if c.count > 0xfff {
		c.milli, c.count = c.milli+1, 0
	}
	return c.milli, c.count
}

// IsZero reports whether the id was never set.
func (id ID) IsZero() bool { return id == ID{} }

// Time is the moment that a version 7 id carries, to the millisecond; the zero
// time for other versions.
func (id ID) Time() time.Time {
	if id[6]>>4 != 7 {
		return time.Time{}
	}
	return time.UnixMilli(int64(binary.BigEndian.Uint64(id[:8]) >> 16))
}

// String is the standard form, 8-4-4-4-12 hexadecimal digits.
func (id ID) String() string {
	var b [36]byte
	hex.Encode(b[:8], id[:4])
	hex.Encode(b[9:13], id[4:6])
	hex.Encode(b[14:18], id[6:8])
	hex.Encode(b[19:23], id[8:10])
	hex.Encode(b[24:], id[10:])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}

// MarshalText is String.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText is ParseID.
func (id *ID) UnmarshalText(text []byte) (err error) {
	*id, err = ParseID(string(text))
	return err
}

// ParseID reads the form that String writes, or 32 hexadecimal digits.
func ParseID(s string) (ID, error) {
	var id ID
	var digits [32]byte
	switch {
	case len(s) == 36 && s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-':
		n := copy(digits[:], s[:8])
		n += copy(digits[n:], s[9:13])
		n += copy(digits[n:], s[14:18])
		n += copy(digits[n:], s[19:23])
		copy(digits[n:], s[24:])
	case len(s) == 32:
		copy(digits[:], s)
	default:
		return id, fmt.Errorf("%w: %q", errID, s)
	}
	if _, err := hex.Decode(id[:], digits[:]); err != nil {
		return ID{}, fmt.Errorf("%w: %q", errID, s)
	}
	return id, nil
}
