package wal

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/wire/pgrepl"
)

// A point is a restore point: a named record that pg_create_restore_point writes to the log.
type point struct {
	at   pgrepl.LSN // of its record
	time time.Time
}

func (p point) String() string {
	return fmt.Sprintf("%s (%s)", p.at, p.time.UTC().Format(time.RFC3339))
}

// The parts of PostgreSQL's log format that matter here; they are the same in all versions
// since 9.5.
//
//	page     a header of 24 bytes, the first of a segment's of 40, then records; one may go
//	         on over the headers of pages
//	record   a header of 24 bytes: length, transaction, previous record, info, resource
//	         manager, 2 bytes, CRC-32C of what follows and of the header before it. Records
//	         begin at multiples of 8.
//	point    after 2 bytes that say how long it is: microseconds since 2000, name[64]
//	commit   or abort, of a prepared transaction, too: microseconds since 2000 first. Its
//	         length has 1 byte or 4; the origin and the transaction around it may be before.
const (
	shortPageHeader = 24
	longPageHeader  = 40
	recordHeader    = 24
	pointRecord     = recordHeader + 2 + 8 + 64
	pageLong        = 2 // flags of a page: it has the long header,
	pageGoesOn      = 1 // its first bytes belong to the record of the page before,
	pageGivesUp     = 8 // that record was never finished
	infoPoint       = 0x70

	managerLog, managerTransaction = 0, 1
)

// since2000 converts a time of the log: microseconds since 1 January 2000, UTC.
func since2000(microseconds uint64) time.Time {
	return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(microseconds) * time.Microsecond)
}

// A pointReader finds the restore points of one name, and the last end of a transaction, in
// consecutive segments that are written to it.
type pointReader struct {
	name    string
	order   binary.ByteOrder
	segment pgrepl.LSN
	left    pgrepl.LSN // where its timeline ends: records that begin there or later do not count
	offset  int64      // of the next byte, in the segment
	header  []byte     // of the page, as far as it was read
	page    int64      // size of a page; 0 before the first header of a segment
	ended   bool       // the rest of the segment holds no records

	record []byte     // what was read of the record, at most pointRecord bytes
	at     pgrepl.LSN // where it begins
	length int64      // of the record; 0 while unknown
	come   int64      // bytes of the record that were read

	found  []point
	newest time.Time // when the latest transaction ended
}

// begin begins a segment of a timeline that ends at the position left.
func (r *pointReader) begin(at, left pgrepl.LSN) {
	r.segment, r.left, r.offset, r.page, r.ended = at, left, 0, 0, false
	r.header = r.header[:0]
}

// Write implements io.Writer. It never fails.
func (r *pointReader) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 && !r.ended {
		n := 0
		if r.page == 0 || r.offset%r.page < r.pageHeader() {
			n = r.readHeader(p)
		} else {
			n = r.readRecord(p[:min(int64(len(p)), r.page-r.offset%r.page)])
		}
		r.offset += int64(n)
		p = p[n:]
	}
	return total, nil
}

func (r *pointReader) pageHeader() int64 {
	if r.offset < longPageHeader {
		return longPageHeader
	}
	return shortPageHeader
}

// readHeader reads bytes of a page header and returns their number.
func (r *pointReader) readHeader(p []byte) int {
	want := int(r.pageHeader())
	n := min(len(p), want-len(r.header))
	r.header = append(r.header, p[:n]...)
	if len(r.header) < want {
		return n
	}
	h := r.header
	r.header = r.header[:0]
	r.order = binary.LittleEndian
	if h[0]&^1 == 0xd0 && h[1]&^1 != 0xd0 { // versions are 0xD05D and up
		r.order = binary.BigEndian
	}
	flags := r.order.Uint16(h[2:])
	if want == longPageHeader {
		r.page = int64(r.order.Uint32(h[36:]))
		if flags&pageLong == 0 || r.page < 512 || r.page&(r.page-1) != 0 {
			r.end()
			return n
		}
	}
	if r.order.Uint64(h[8:]) != uint64(r.segment)+uint64(r.offset)+uint64(n)-uint64(want) {
		r.end() // zeros, or what the recycled file held before
		return n
	}
	switch rest := int64(r.order.Uint32(h[16:])); {
	case flags&pageGoesOn == 0 || flags&pageGivesUp != 0 || rest == 0:
		r.next()
	case r.come == 0 || r.length != r.come+rest: // the record's beginning was not read
		r.next()
		r.length, r.come = rest, 0
		r.record = append(r.record[:0], make([]byte, pointRecord+1)...) // no restore point has this length
	}
	return n
}

// readRecord reads bytes of records, all on one page, and returns their number.
func (r *pointReader) readRecord(p []byte) int {
	if r.come == 0 && len(r.record) == 0 {
		at := uint64(r.segment) + uint64(r.offset)
		if pad := int(-at & 7); pad > 0 {
			return min(pad, len(p))
		}
		r.at = pgrepl.LSN(at)
	}
	n := int64(len(p))
	if r.length == 0 {
		n = min(n, 4-r.come) // a length does not cross pages, because records begin at multiples of 8
	} else {
		n = min(n, r.length-r.come)
	}
	if room := pointRecord - len(r.record); room > 0 {
		r.record = append(r.record, p[:min(n, int64(room))]...)
	}
	r.come += n
	if r.length == 0 && r.come == 4 {
		if r.length = int64(r.order.Uint32(r.record)); r.length < recordHeader {
			r.end() // zeros: the rest of the segment is unused
			return int(n)
		}
	}
	if r.length > 0 && r.come == r.length {
		r.judge()
		r.next()
	}
	return int(n)
}

// next resets the state for the next record.
func (r *pointReader) next() { r.record, r.length, r.come = r.record[:0], 0, 0 }

// end skips the rest of the segment.
func (r *pointReader) end() {
	r.next()
	r.ended = true
}

// judge evaluates a complete record: it keeps a restore point of the name, and the time at
// which a transaction ended.
func (r *pointReader) judge() {
	b := r.record
	if r.at >= r.left {
		return
	}
	if len(b) > recordHeader && len(b) <= pointRecord && b[17] == managerTransaction {
		r.transaction(b[16]&0x70, b[recordHeader:])
		return
	}
	if r.length != pointRecord || len(b) != pointRecord || b[17] != managerLog || b[16]&0xf0 != infoPoint || b[recordHeader] != 255 || b[recordHeader+1] != 72 {
		return
	}
	name, _, _ := bytes.Cut(b[recordHeader+10:], []byte{0})
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(crc32.Checksum(b[recordHeader:], castagnoli), castagnoli, b[:20])
	if string(name) != r.name || sum != r.order.Uint32(b[20:]) {
		return
	}
	r.found = append(r.found, point{r.at, since2000(r.order.Uint64(b[recordHeader+2:]))})
}

// transaction records the time at which a transaction ended. what is the kind of its record, b
// the data.
func (r *pointReader) transaction(what byte, b []byte) {
	switch what {
	case 0x00, 0x20, 0x30, 0x40: // commit, abort, and those of a prepared one
	default:
		return
	}
	for len(b) > 0 {
		skip := 0
		switch b[0] {
		case 253: // origin
			skip = 1 + 2
		case 252: // the transaction around it
			skip = 1 + 4
		case 254, 255: // data, with a length of 4 bytes or of 1
			from := 2
			if b[0] == 254 {
				from = 5
			}
			if len(b) < from+8 {
				return
			}
			if at := since2000(r.order.Uint64(b[from:])); at.After(r.newest) {
				r.newest = at
			}
			return
		}
		if skip == 0 || skip > len(b) {
			return
		}
		b = b[skip:]
	}
}

// named returns the ID of the newest of bases (base backups, oldest first) from which the
// restore point t.Name can be reached. It reads the log, from the newest backup back, until it
// finds the point.
func (t Target) named(ctx context.Context, repo *archive.Repository, log archive.Storage, bases []archive.Summary, known []history, keys archive.ReadOptions) (string, error) {
	newest := bases[len(bases)-1]
	s, err := openStore(ctx, log, newest.Server.SystemID)
	if errors.Is(err, errNoLog) {
		return newest.ID, nil // it cannot be restored to any target; the restore reports that
	}
	if err != nil {
		return "", err
	}
	logKeys, err := s.keys(ctx, keys)
	if err != nil {
		return "", err
	}
	segments, _, err := s.list(ctx)
	if err != nil {
		return "", err
	}
	var later window // of the next newer backup
	why := ""
	for i := len(bases) - 1; i >= 0; i-- {
		b, err := baseOf(ctx, repo, bases[i].ID, keys)
		if err != nil {
			return "", err
		}
		w := window{end: ^uint64(0)}
		if w.timeline, err = t.timeline(bases[i], known); err != nil {
			return "", err
		}
		c := s.chainTo(b, w.timeline, segments, known)
		size := uint64(s.cluster.SegmentBytes)
		w.first = c.first()
		if w.timeline == later.timeline {
			w.end = later.first
		}
		if err := w.read(ctx, c, t.Name, logKeys); err != nil {
			return "", err
		}
		if uint64(w.reached)/size >= w.end {
			w.found, w.reached = append(w.found, later.found...), later.reached
		}
		if i == len(bases)-1 {
			why = fmt.Sprintf("; the log after the newest, %s, was read up to %s", newest.ID, w.reached)
		}
		// A server replays from the start of the backup and ends at the first point of that
		// name, even if the backup is not consistent there yet.
		found := w.from(b.Start)
		switch {
		case len(found) > 0 && found[0].at < b.Stop:
			why = fmt.Sprintf("; the point at %s was made while backup %s was taken", found[0], bases[i].ID)
		case len(found) > 1:
			const shown = 5
			var all []string
			for _, p := range found[:min(len(found), shown)] {
				all = append(all, p.String())
			}
			if len(found) > shown {
				all = append(all, "...")
			}
			return "", fmt.Errorf("the name %q was given %d times after base backup %s, at %s: name one of these positions by --target-lsn, or the backup by its ID, which leads to the first of them",
				t.Name, len(found), bases[i].ID, strings.Join(all, ", "))
		case len(found) == 1:
			return bases[i].ID, nil
		}
		later = w
	}
	return "", fmt.Errorf("no restore point %q is in the archived log after any of the %d base backups in %s%s", t.Name, len(bases), repo, why)
}

// A window is the part of the log after a base backup that was read: the segments [first, end),
// and the restore points in them and in the windows after them.
type window struct {
	timeline   uint32 // the timeline that is to be reached
	first, end uint64
	found      []point
	reached    pgrepl.LSN // up to where the log can be replayed without a gap
}

// from returns the points at or after a position, which is in the first segment as a rule.
func (w *window) from(start pgrepl.LSN) []point {
	i := slices.IndexFunc(w.found, func(p point) bool { return p.at >= start })
	if i < 0 {
		return nil
	}
	return w.found[i:]
}

// read reads the segments of a chain that belong to the window.
func (w *window) read(ctx context.Context, c *chain, name string, keys archive.ReadOptions) error {
	size := c.store.cluster.SegmentBytes
	r := &pointReader{name: name}
	w.reached = pgrepl.LSN(w.first * uint64(size))
	for number := w.first; number < w.end && number <= c.last; number++ {
		end, there, err := c.scan(ctx, number, r, keys)
		if err != nil {
			return fmt.Errorf("look for restore point %q: %w", name, err)
		}
		if !there {
			break
		}
		w.found, w.reached = r.found, end
		if end < pgrepl.LSN((number+1)*uint64(size)) {
			break
		}
	}
	return nil
}
