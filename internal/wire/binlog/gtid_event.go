package binlog

import (
	"fmt"
	"time"
)

// Flags of MariaDB's GTID event.
const (
	mariaStandalone = 1 << 0 // one event follows, without an end event
	mariaPreparedXA = 1 << 6
)

// gtidInfo is what a GTID event says about the transaction that follows.
type gtidInfo struct {
	gtid       GTID
	maria      bool
	standalone bool      // MariaDB: one statement follows
	committed  time.Time // MySQL 8: zero if the log does not say
	announced  time.Time // by the event's header; zero without a GTID event
}

// begun returns the best known time of the transaction at its beginning.
func (i gtidInfo) begun() time.Time {
	if i.committed.IsZero() {
		return i.announced
	}
	return i.committed
}

// isGTID reports whether the event announces a transaction.
func isGTID(t EventType) bool {
	switch t {
	case GTIDEvent, AnonymousGTIDEvent, TaggedGTIDEvent, MariaGTIDEvent:
		return true
	}
	return false
}

// parseGTID parses an event that announces a transaction.
func parseGTID(e *Event) (info gtidInfo, err error) {
	c := cursor{b: e.Body()}
	switch e.Type {
	case MariaGTIDEvent:
		info.maria = true
		info.gtid = GTID{Seq: c.u64(), Domain: c.u32(), Server: e.ServerID}
		info.standalone = c.u8()&mariaStandalone != 0
	case TaggedGTIDEvent:
		info = taggedGTID(&c)
	default:
		info = plainGTID(&c)
		if e.Type == AnonymousGTIDEvent {
			info.gtid = GTID{}
		}
	}
	if c.bad {
		return gtidInfo{}, fmt.Errorf("%s: %w", e.Type, ErrMalformed)
	}
	info.announced = time.Unix(int64(e.Timestamp), 0)
	return info, nil
}

// logicalTimestamps says that a GTID event has the fields of MySQL 5.7.
const logicalTimestamps = 2

// plainGTID parses MySQL's GTID event. Later versions added fields after the number.
func plainGTID(c *cursor) (info gtidInfo) {
	c.u8() // flags
	copy(info.gtid.UUID[:], c.bytes(16))
	info.gtid.Seq = c.u64()
	if len(c.b) < 1+16+7 || c.u8() != logicalTimestamps {
		return info
	}
	c.bytes(16) // last_committed, sequence_number
	// 56 bits: microseconds. The top bit says that the origin's time follows.
	micros := uint64(c.u32()) | uint64(c.u16())<<32 | uint64(c.u8())<<48
	info.committed = time.UnixMicro(int64(micros &^ (1 << 55)))
	return info
}

// Fields of a tagged GTID event, by number.
const (
	taggedUUID       = 1
	taggedSeq        = 2
	taggedTag        = 3
	taggedCommitted  = 6 // by the server whose log it is, in microseconds
	taggedLast       = 11
	taggedFlags      = 0
	taggedFirstOther = 4
)

// taggedGTID parses a GTID event with a tag, which has MySQL's serialization format: a version,
// the size, the last field that must not be ignored, then numbered fields. The order is fixed,
// and later fields may be missing.
func taggedGTID(c *cursor) (info gtidInfo) {
	c.varlen() // version of the format
	c.varlen() // size
	c.varlen() // last field that matters
	for len(c.b) > 0 && !c.bad {
		switch field := c.varlen(); field {
		case taggedUUID:
			for i := range info.gtid.UUID {
				info.gtid.UUID[i] = byte(c.varlen())
			}
		case taggedSeq:
			info.gtid.Seq = c.zigzag()
		case taggedTag:
			info.gtid.Tag = string(c.bytes64(c.varlen()))
		case taggedCommitted:
			info.committed = time.UnixMicro(int64(c.varlen()))
			return info // the rest is not needed
		case taggedFlags, taggedFirstOther, taggedFirstOther + 1:
			c.varlen()
		default:
			if field > taggedLast {
				return info
			}
			c.varlen()
		}
	}
	return info
}
