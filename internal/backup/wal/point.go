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

// A point is a restore point, as pg_create_restore_point writes it into the log.
type point struct {
	at   pgrepl.LSN // of its record
	time time.Time
}

func (p point) String() string {
	return fmt.Sprintf("%s (%s)", p.at, p.time.UTC().Format(time.RFC3339))
}

// The parts of PostgreSQL's log that matter here, the same in all versions from 9.5 on.
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

// since2000 is a time of the log.
func since2000(microseconds uint64) time.Time {
	return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(microseconds) * time.Microsecond)
}

// pointReader looks for restore points of one name, and for ends of transactions, in
// segments that are written to it, one behind the other.
type pointReader struct {
	name    string
	order   binary.ByteOrder
	segment pgrepl.LSN
	left    pgrepl.LSN // where its timeline was left: no record counts that begins behind it
	offset  int64      // in the segment, of what comes next
	header  []byte     // of a page, as far as it has come
	page    int64      // the length of pages, 0 before the first header of a segment
	ended   bool       // nothing of this segment is a record any more

	record []byte     // as far as it has come, or its beginning where it is no point
	at     pgrepl.LSN // where it begins
	length int64      // of the record; 0 before that is known
	come   int64      // how much of it has come

	found  []point
	newest time.Time // at which a transaction ended
}

// begin begins a segment, of a timeline that was left at a position.
func (r *pointReader) begin(at, left pgrepl.LSN) {
	r.segment, r.left, r.offset, r.page, r.ended = at, left, 0, 0, false
	r.header = r.header[:0]
}

// Write takes the next bytes of a segment.
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

// readHeader takes bytes of a page's header.
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
		r.end() // zeros, or what the file held before
		return n
	}
	switch rest := int64(r.order.Uint32(h[16:])); {
	case flags&pageGoesOn == 0 || flags&pageGivesUp != 0 || rest == 0:
		r.next()
	case r.come == 0 || r.length != r.come+rest: // its beginning was not seen
		r.next()
		r.length, r.come = rest, 0
		r.record = append(r.record[:0], make([]byte, pointRecord+1)...) // no point has this length
	}
	return n
}

// readRecord takes bytes of records, all of one page.
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
		n = min(n, 4-r.come) // a record's length is within one page, as it begins at a multiple of 8
	} else {
		n = min(n, r.length-r.come)
	}
	if room := pointRecord - len(r.record); room > 0 {
		r.record = append(r.record, p[:min(n, int64(room))]...)
	}
	r.come += n
	if r.length == 0 && r.come == 4 {
		if r.length = int64(r.order.Uint32(r.record)); r.length < recordHeader {
			r.end() // zeros: the rest of the segment is not used
			return int(n)
		}
	}
	if r.length > 0 && r.come == r.length {
		r.judge()
		r.next()
	}
	return int(n)
}

// next begins a record.
func (r *pointReader) next() { r.record, r.length, r.come = r.record[:0], 0, 0 }

// end leaves out the rest of a segment.
func (r *pointReader) end() {
	r.next()
	r.ended = true
}

// judge notes a record if it is a point of the name, or the end of a transaction.
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

// transaction notes when one ended.
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
		case 252: // transaction around it
			skip = 1 + 4
		case 254, 255: // data, of a length in 4 bytes or in 1
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

// named returns the newest of base backups, which come oldest first, from which the
// restore point of a target can be reached. It reads the log, the newest first, until it
// has found it.
func (t Target) named(ctx context.Context, repo *archive.Repository, log archive.Storage, bases []archive.Summary, known []history, keys archive.ReadOptions) (string, error) {
	newest := bases[len(bases)-1]
	s, err := openStore(ctx, log, newest.Server.SystemID)
	if errors.Is(err, errNoLog) {
		return newest.ID, nil // which cannot be restored to a target at all, and says so
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
	var later window // of the backup behind the one that is looked at
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
			why = fmt.Sprintf("; the log behind the newest, %s, was read up to %s", newest.ID, w.reached)
		}
		// A server ends its replay, which begins at the backup's start, at the first point of
		// the name, also where the backup is not consistent yet.
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
	return "", fmt.Errorf("no restore point %q is in the archived log behind any of the %d base backups in %s%s", t.Name, len(bases), repo, why)
}

// window is what was read of the log behind a base backup: segments from first on and
// before end, and the points in them and behind them.
type window struct {
	timeline   uint32 // that is to be reached
	first, end uint64
	found      []point
	reached    pgrepl.LSN // where the log ends that can be replayed without a gap
}

// from returns the points from a position on, in the first segment mostly.
func (w *window) from(start pgrepl.LSN) []point {
	i := slices.IndexFunc(w.found, func(p point) bool { return p.at >= start })
	if i < 0 {
		return nil
	}
	return w.found[i:]
}

// read reads the segments of a chain.
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
