package binlog

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// GTID identifies one transaction on all servers. It is comparable. The zero GTID is that of
// transactions on a server that has GTIDs switched off.
type GTID struct {
	// UUID is that of the MySQL server where the transaction was made; zero for MariaDB.
	UUID [16]byte
	// Tag is an optional part between UUID and number in MySQL 8.4 and later.
	Tag string
	// Domain and Server are parts of MariaDB's GTIDs.
	Domain, Server uint32
	// Seq is the transaction number, from 1.
	Seq uint64
}

// IsZero reports whether g is the zero GTID.
func (g GTID) IsZero() bool { return g == GTID{} }

// mysql reports whether g has MySQL's form.
func (g GTID) mysql() bool { return g.UUID != [16]byte{} }

// String returns the GTID as its server writes it, or "" for the zero GTID.
func (g GTID) String() string {
	switch {
	case g.IsZero():
		return ""
	case g.mysql():
		return origin{g.UUID, g.Tag}.String() + ":" + strconv.FormatUint(g.Seq, 10)
	}
	return fmt.Sprintf("%d-%d-%d", g.Domain, g.Server, g.Seq)
}

// origin identifies a sequence of MySQL transaction numbers.
type origin struct {
	uuid [16]byte
	tag  string
}

func (o origin) String() string {
	var b [36]byte
	hex.Encode(b[:8], o.uuid[:4])
	hex.Encode(b[9:13], o.uuid[4:6])
	hex.Encode(b[14:18], o.uuid[6:8])
	hex.Encode(b[19:23], o.uuid[8:10])
	hex.Encode(b[24:], o.uuid[10:])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	if o.tag != "" {
		return string(b[:]) + ":" + o.tag
	}
	return string(b[:])
}

// span is a range of transaction numbers, both ends included.
type span struct{ first, last uint64 }

// GTIDSet is a set of transactions. For MariaDB it is a position: the last transaction of each
// domain. The zero value is the empty set. It is used by one goroutine at a time.
type GTIDSet struct {
	domains map[uint32]GTID
	origins map[origin][]span // sorted, apart, none adjacent
}

// ParseGTIDSet parses a set as either server family prints it: "0-1-5,2-1-3", or
// "uuid:1-5:7,uuid:tag:1-3". White space between parts is allowed; "" is the empty set.
func ParseGTIDSet(s string) (*GTIDSet, error) {
	set := &GTIDSet{}
	for _, part := range strings.Split(s, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		var err error
		if strings.Contains(part, ":") {
			err = set.parseOrigin(part)
		} else {
			err = set.parseDomain(part)
		}
		if err != nil {
			return nil, fmt.Errorf("parse GTID set: %q: %w", part, err)
		}
	}
	if len(set.domains) > 0 && len(set.origins) > 0 {
		return nil, errors.New("parse GTID set: GTIDs of MySQL and of MariaDB in one")
	}
	return set, nil
}

func (s *GTIDSet) parseDomain(part string) error {
	fields := strings.Split(part, "-")
	if len(fields) != 3 {
		return errors.New("want domain-server-number")
	}
	domain, err1 := strconv.ParseUint(fields[0], 10, 32)
	server, err2 := strconv.ParseUint(fields[1], 10, 32)
	seq, err3 := strconv.ParseUint(fields[2], 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	if _, twice := s.domains[uint32(domain)]; twice {
		return fmt.Errorf("domain %d occurs twice", domain)
	}
	s.Add(GTID{Domain: uint32(domain), Server: uint32(server), Seq: seq})
	return nil
}

func (s *GTIDSet) parseOrigin(part string) error {
	fields := strings.Split(part, ":")
	raw, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(fields[0]), "-", ""))
	if err != nil || len(raw) != 16 {
		return errors.New("want a UUID first")
	}
	o := origin{uuid: [16]byte(raw)}
	for _, f := range fields[1:] {
		f = strings.TrimSpace(f)
		if f != "" && (f[0] < '0' || f[0] > '9') {
			o.tag = strings.ToLower(f)
			continue
		}
		sp, err := parseSpan(f)
		if err != nil {
			return err
		}
		s.addSpan(o, sp)
	}
	return nil
}

func parseSpan(f string) (span, error) {
	a, b, isRange := strings.Cut(f, "-")
	first, err := strconv.ParseUint(strings.TrimSpace(a), 10, 63)
	if err != nil {
		return span{}, err
	}
	last := first
	if isRange {
		if last, err = strconv.ParseUint(strings.TrimSpace(b), 10, 63); err != nil {
			return span{}, err
		}
	}
	if first == 0 || last < first {
		return span{}, errors.New("want numbers from 1 on, rising")
	}
	return span{first, last}, nil
}

// Add adds a transaction to the set. A MariaDB transaction becomes the last one of its domain.
func (s *GTIDSet) Add(g GTID) {
	switch {
	case g.IsZero():
	case g.mysql():
		s.addSpan(origin{g.UUID, g.Tag}, span{g.Seq, g.Seq})
	default:
		if s.domains == nil {
			s.domains = map[uint32]GTID{}
		}
		s.domains[g.Domain] = g
	}
}

func (s *GTIDSet) addSpan(o origin, add span) {
	if s.origins == nil {
		s.origins = map[origin][]span{}
	}
	spans := s.origins[o]
	// The common case first: the number after the last one.
	if n := len(spans); n > 0 && add.first == spans[n-1].last+1 {
		spans[n-1].last = add.last
		return
	}
	i, _ := slices.BinarySearchFunc(spans, add.first, func(sp span, first uint64) int { return cmp.Compare(sp.first, first) })
	spans = slices.Insert(spans, i, add)
	joined := spans[:0]
	for _, sp := range spans {
		if n := len(joined); n > 0 && sp.first <= joined[n-1].last+1 {
			joined[n-1].last = max(joined[n-1].last, sp.last)
			continue
		}
		joined = append(joined, sp)
	}
	s.origins[o] = joined
}

// Contains reports whether the set contains the transaction. MariaDB's numbers rise within a
// domain, so all up to the last one are in the set.
func (s *GTIDSet) Contains(g GTID) bool {
	switch {
	case s == nil || g.IsZero():
		return false
	case g.mysql():
		return slices.ContainsFunc(s.origins[origin{g.UUID, g.Tag}], func(sp span) bool { return sp.first <= g.Seq && g.Seq <= sp.last })
	}
	last, ok := s.domains[g.Domain]
	return ok && g.Seq <= last.Seq
}

// IsEmpty reports whether the set is empty.
func (s *GTIDSet) IsEmpty() bool { return s == nil || len(s.domains)+len(s.origins) == 0 }

// Clone returns an independent copy; nil for nil.
func (s *GTIDSet) Clone() *GTIDSet {
	if s == nil {
		return nil
	}
	c := &GTIDSet{domains: maps.Clone(s.domains), origins: maps.Clone(s.origins)}
	for o, spans := range c.origins {
		c.origins[o] = slices.Clone(spans)
	}
	return c
}

// String returns the set as its server prints it, in a fixed order.
func (s *GTIDSet) String() string {
	if s == nil {
		return ""
	}
	var parts []string
	for _, d := range slices.Sorted(maps.Keys(s.domains)) {
		parts = append(parts, s.domains[d].String())
	}
	for _, o := range s.sorted() {
		b := []byte(o.String())
		for _, sp := range s.origins[o] {
			b = strconv.AppendUint(append(b, ':'), sp.first, 10)
			if sp.last != sp.first {
				b = strconv.AppendUint(append(b, '-'), sp.last, 10)
			}
		}
		parts = append(parts, string(b))
	}
	return strings.Join(parts, ",")
}

// sorted returns the origins in the order in which servers encode them.
func (s *GTIDSet) sorted() []origin {
	return slices.SortedFunc(maps.Keys(s.origins), func(a, b origin) int {
		return cmp.Or(slices.Compare(a.uuid[:], b.uuid[:]), cmp.Compare(a.tag, b.tag))
	})
}

// Encodings of MySQL's sets. The first 8 bytes are the number of origins; in the tagged form it
// is shifted left by a byte, and the first and the last byte identify the form.
const (
	encodingPlain  = 0
	encodingTagged = 1
)

// appendMySQL appends MySQL's encoding, as in COM_BINLOG_DUMP_GTID.
func (s *GTIDSet) appendMySQL(dst []byte) []byte {
	origins := s.sorted()
	tagged := slices.ContainsFunc(origins, func(o origin) bool { return o.tag != "" })
	count := uint64(len(origins))
	if tagged {
		count = count<<8 | encodingTagged | encodingTagged<<56
	}
	dst = binary.LittleEndian.AppendUint64(dst, count)
	for _, o := range origins {
		dst = append(dst, o.uuid[:]...)
		if tagged {
			dst = append(appendVarlen(dst, uint64(len(o.tag))), o.tag...)
		}
		spans := s.origins[o]
		dst = binary.LittleEndian.AppendUint64(dst, uint64(len(spans)))
		for _, sp := range spans {
			dst = binary.LittleEndian.AppendUint64(dst, sp.first)
			dst = binary.LittleEndian.AppendUint64(dst, sp.last+1)
		}
	}
	return dst
}

// parseMySQLSet parses MySQL's encoding: the body of a PREVIOUS_GTIDS event.
func parseMySQLSet(b []byte) (*GTIDSet, error) {
	c := cursor{b: b}
	count := c.u64()
	tagged := count>>56 == encodingTagged
	if tagged {
		count = count << 8 >> 16
	}
	set := &GTIDSet{}
	for i := uint64(0); i < count && !c.bad; i++ {
		var o origin
		copy(o.uuid[:], c.bytes(16))
		if tagged {
			o.tag = string(c.bytes64(c.varlen()))
		}
		for n := c.u64(); n > 0 && !c.bad; n-- {
			first, end := c.u64(), c.u64()
			if c.bad || first == 0 || end <= first || end > 1<<63 {
				c.bad = true
				break
			}
			set.addSpan(o, span{first, end - 1})
		}
	}
	if c.bad || len(c.b) != 0 {
		return nil, fmt.Errorf("PREVIOUS_GTIDS: %w", ErrMalformed)
	}
	return set, nil
}

// parseMariaList parses the body of a GTID_LIST event.
func parseMariaList(b []byte) (*GTIDSet, error) {
	c := cursor{b: b}
	set := &GTIDSet{}
	for n := c.u32() & (1<<28 - 1); n > 0 && !c.bad; n-- {
		// The last one of a domain in the list is the domain's last one in the log.
		g := GTID{Domain: c.u32(), Server: c.u32(), Seq: c.u64()}
		if !c.bad {
			set.Add(g)
		}
	}
	if c.bad {
		return nil, fmt.Errorf("GTID_LIST: %w", ErrMalformed)
	}
	return set, nil
}
