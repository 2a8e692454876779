package pgrepl

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// LSN is a position in the server's log, in bytes from its beginning. 0 is not a valid
// position.
type LSN uint64

// ParseLSN parses the form in which PostgreSQL writes positions, such as "16/B374D848".
func ParseLSN(s string) (LSN, error) {
	hi, lo, ok := strings.Cut(s, "/")
	if !ok {
		return 0, fmt.Errorf("log position %q: want two hexadecimal numbers around a slash", s)
	}
	h, err := strconv.ParseUint(hi, 16, 32)
	if err != nil {
		return 0, fmt.Errorf("log position %q: %w", s, err)
	}
	l, err := strconv.ParseUint(lo, 16, 32)
	if err != nil {
		return 0, fmt.Errorf("log position %q: %w", s, err)
	}
	return LSN(h<<32 | l), nil
}

// String returns the position as PostgreSQL writes it.
func (l LSN) String() string { return fmt.Sprintf("%X/%X", uint32(l>>32), uint32(l)) }

// epoch is the origin of the protocol's times.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// protocolTime converts microseconds since the epoch, as the server sends them, to a time in
// UTC.
func protocolTime(us int64) time.Time {
	return time.UnixMicro(epoch.UnixMicro() + us).UTC()
}

// protocolMicros is the inverse of protocolTime.
func protocolMicros(t time.Time) int64 { return t.UnixMicro() - epoch.UnixMicro() }

// Limits of wal_segment_size, in bytes.
const (
	minSegmentSize = 1 << 20
	maxSegmentSize = 1 << 30
)

// Segment identifies one file of the server's log.
type Segment struct {
	Timeline uint32
	Number   uint64 // from 0: the position at which it starts, divided by Size
	Size     int64  // bytes, wal_segment_size
}

// SegmentAt returns the segment that contains a position.
func SegmentAt(timeline uint32, at LSN, size int64) Segment {
	return Segment{Timeline: timeline, Number: uint64(at) / uint64(size), Size: size}
}

// Start returns the position of the segment's first byte.
func (s Segment) Start() LSN { return LSN(s.Number * uint64(s.Size)) }

// End returns the position after the segment's last byte.
func (s Segment) End() LSN { return s.Start() + LSN(s.Size) }

// Name returns the name of the file in pg_wal: 24 hexadecimal digits.
func (s Segment) Name() string {
	perID := uint64(1<<32) / uint64(s.Size)
	return fmt.Sprintf("%08X%08X%08X", s.Timeline, s.Number/perID, s.Number%perID)
}

// ParseSegment is the inverse of Segment.Name. size is wal_segment_size, in bytes.
func ParseSegment(name string, size int64) (Segment, error) {
	if err := checkSegmentSize(size); err != nil {
		return Segment{}, err
	}
	if len(name) != 24 {
		return Segment{}, fmt.Errorf("segment %q: want 24 hexadecimal digits", name)
	}
	var part [3]uint64
	for i := range part {
		n, err := strconv.ParseUint(name[8*i:8*i+8], 16, 32)
		if err != nil {
			return Segment{}, fmt.Errorf("segment %q: %w", name, err)
		}
		part[i] = n
	}
	perID := uint64(1<<32) / uint64(size)
	if part[2] >= perID {
		return Segment{}, fmt.Errorf("segment %q: there is none of that number with segments of %d bytes", name, size)
	}
	return Segment{Timeline: uint32(part[0]), Number: part[1]*perID + part[2], Size: size}, nil
}

func checkSegmentSize(size int64) error {
	if size < minSegmentSize || size > maxSegmentSize || size&(size-1) != 0 {
		return fmt.Errorf("segment size %d: want a power of two from 1 MiB to 1 GiB", size)
	}
	return nil
}
