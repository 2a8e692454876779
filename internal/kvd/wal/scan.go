package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
)

// segment is a file of the log, as known from a scan or by writing it.
type segment struct {
	header
	file     string
	seed     uint32 // of the checksums: the header's checksum
	length   int64  // size of the file in bytes
	end      int64  // end of the last valid round
	chain    uint32 // body checksum of the last valid round
	rounds   uint64 // number of the last valid round
	lastAt   int64  // offset of that round
	maxIndex uint64 // highest index of an Entry or Reset, valid or not
}

// readSegment reads the header of a segment, for [segment.scan].
func readSegment(disk Disk, file string) (*segment, File, error) {
	f, err := disk.Open(file, false)
	if err != nil {
		return nil, nil, fmt.Errorf("open segment: %w", err)
	}
	s, err := openSegment(f, file)
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return s, f, nil
}

func openSegment(f File, file string) (*segment, error) {
	length, err := f.Size()
	if err != nil {
		return nil, fmt.Errorf("find size of %s: %w", file, err)
	}
	b := make([]byte, min(segmentHead, length))
	if err := readFull(f, b, 0); err != nil {
		return nil, fmt.Errorf("read header of %s: %w", file, err)
	}
	h, seed, err := decodeHeader(file, b)
	if err != nil {
		return nil, err
	}
	if length < h.size {
		return nil, corrupt(file, length, "the file is cut short, it had %d bytes", h.size)
	}
	return &segment{header: h, file: file, seed: seed, length: length, end: segmentHead, chain: seed}, nil
}

// readFull fills b from offset.
func readFull(f io.ReaderAt, b []byte, offset int64) error {
	n, err := f.ReadAt(b, offset)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// damage says where a scan stopped, and why.
type damage struct {
	offset int64
	what   string
	read   error // a read failed; the bytes are unknown
}

// round is a valid round. The caller owns body and records.
type round struct {
	head
	records []Record
}

// scan yields the rounds of the segment and updates s.end, s.chain and s.rounds. It stops at an
// invalid round and sets d, which stays empty at the end of the file. A limit other than 0 is
// the known end of the last round.
func (s *segment) scan(f io.ReaderAt, limit int64, d *damage) iter.Seq[round] {
	return func(yield func(round) bool) {
		s.end, s.chain, s.rounds, s.lastAt, s.maxIndex = segmentHead, s.seed, 0, segmentHead, 0
		for s.end+roundHead <= s.length && (limit == 0 || s.end < limit) {
			h, body, ok := s.readRound(f, d)
			if !ok {
				return
			}
			records, err := decodeBody(body[:h.length], h.records)
			if err != nil {
				*d = damage{offset: s.end, what: fmt.Sprintf("round %d: %v", h.number, err)}
				return
			}
			s.lastAt, s.end, s.chain, s.rounds = s.end, h.end(), h.bodySum, h.number
			for i := range records {
				if k := records[i].Kind; k == Entry || k == Reset {
					s.maxIndex = max(s.maxIndex, records[i].Index)
				}
			}
			if !yield(round{head: h, records: records}) {
				return
			}
		}
	}
}

// readRound reads and verifies the round at s.end.
func (s *segment) readRound(f io.ReaderAt, d *damage) (head, []byte, bool) {
	number := s.rounds + 1
	var b [roundHead]byte
	if err := readFull(f, b[:], s.end); err != nil {
		*d = damage{offset: s.end, what: "the head of a round cannot be read", read: err}
		return head{}, nil, false
	}
	h, ok := decodeHead(b[:], s.seed)
	if !ok || h.offset != s.end {
		*d = damage{offset: s.end, what: fmt.Sprintf("the head of round %d does not verify", number)}
		return head{}, nil, false
	}
	if h.number != number {
		*d = damage{offset: s.end, what: fmt.Sprintf("round %d is where round %d belongs", h.number, number)}
		return head{}, nil, false
	}
	if h.end() > s.length {
		*d = damage{offset: s.end, what: fmt.Sprintf("the file ends inside round %d", number)}
		return head{}, nil, false
	}
	body := make([]byte, padded(h.length))
	if err := readFull(f, body, s.end+roundHead); err != nil {
		*d = damage{offset: s.end, what: fmt.Sprintf("the body of round %d cannot be read", number), read: err}
		return head{}, nil, false
	}
	if checksum(s.chain, body) != h.bodySum {
		*d = damage{offset: s.end, what: fmt.Sprintf("the body of round %d does not verify", number)}
		return head{}, nil, false
	}
	return h, body, true
}

// decodeBody decodes the records of a round. Their data aliases body.
func decodeBody(body []byte, count uint32) ([]Record, error) {
	records := make([]Record, 0, min(int(count), len(body)/4))
	for len(body) > 0 {
		r, rest, err := decodeRecord(body)
		if err != nil {
			return nil, err
		}
		records, body = append(records, r), rest
	}
	if len(records) != int(count) {
		return nil, fmt.Errorf("it has %d records instead of %d", len(records), count)
	}
	return records, nil
}

// later searches for the head of a round that was written after the one that belongs at s.end,
// and returns its offset. If there is one, what is at s.end was flushed before, or was written
// to a wrong place.
func (s *segment) later(f io.ReaderAt) (head, int64, error) {
	const step = 1 << 20
	const numberAt = 16
	var zeros [4 << 10]byte // most of a segment that is not full
	buf := make([]byte, max(0, min(step+roundHead, s.length-s.end)))
	most := s.rounds + uint64(s.length/roundHead) // no head has a higher number: this saves checksums
	for at := s.end + roundAlign; at+roundHead <= s.length; at += step {
		b := buf[:min(int64(len(buf)), s.length-at)]
		if err := readFull(f, b, at); err != nil {
			return head{}, 0, fmt.Errorf("read %s at %d: %w", s.file, at, err)
		}
		for i := 0; i+roundHead <= len(b) && i < step; i += roundAlign {
			number := binary.LittleEndian.Uint64(b[i+numberAt:])
			if number <= s.rounds || number > most {
				if number == 0 && i+len(zeros) <= len(b) && bytes.Equal(b[i:i+len(zeros)], zeros[:]) {
					i += len(zeros) - numberAt - roundAlign // to the first head whose number may not be 0
				}
				continue
			}
			if h, ok := decodeHead(b[i:], s.seed); ok {
				return h, at + int64(i), nil
			}
		}
	}
	return head{}, 0, nil
}
