package wal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
)

const (
	formatVersion = 1

	segmentHead = 128 // bytes of a segment's header
	roundHead   = 32  // bytes of a round's head
	roundAlign  = 8   // rounds start at multiples of this

	// maxRound limits the body of a round, so that an absurd length is not trusted. Callers cut
	// rounds at about 1 MiB.
	maxRound = 1 << 30

	segmentMagic  = "weirwal\n"
	segmentSuffix = ".wal"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(seed uint32, b []byte) uint32 { return crc32.Update(seed, castagnoli, b) }

func segmentName(number uint64) string { return fmt.Sprintf("%020d%s", number, segmentSuffix) }

// parseSegmentName returns the number in the name of a segment.
func parseSegmentName(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, segmentSuffix)
	if !ok {
		return 0, false
	}
	return parseDigits(digits)
}

// parseDigits parses a number of exactly 20 digits.
func parseDigits(s string) (uint64, bool) {
	var n uint64
	if len(s) != 20 {
		return 0, false
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		next := n*10 + uint64(c-'0')
		if next/10 != n {
			return 0, false
		}
		n = next
	}
	return n, true
}

// header is the header of a segment.
type header struct {
	number    uint64
	log       LogID
	nonce     uint64 // distinguishes the checksums of this use of the file from those of earlier ones
	size      int64  // least length of the file since it has its name
	prevEnd   int64  // end of the previous segment's last round
	prevChain uint32 // the body checksum of that round
	lastIndex uint64 // of the last entry before this segment
	lastTerm  uint64
}

func (h *header) encode() []byte {
	b := make([]byte, segmentHead)
	copy(b, segmentMagic)
	le := binary.LittleEndian
	le.PutUint32(b[8:], formatVersion)
	le.PutUint64(b[16:], h.number)
	copy(b[24:], h.log[:])
	le.PutUint64(b[40:], h.nonce)
	le.PutUint64(b[48:], uint64(h.size))
	le.PutUint64(b[56:], uint64(h.prevEnd))
	le.PutUint32(b[64:], h.prevChain)
	le.PutUint64(b[72:], h.lastIndex)
	le.PutUint64(b[80:], h.lastTerm)
	le.PutUint32(b[12:], headerChecksum(b))
	return b
}

// headerChecksum covers the whole header except its own four bytes.
func headerChecksum(b []byte) uint32 {
	return checksum(checksum(0, b[:12]), b[16:segmentHead])
}

// decodeHeader decodes the header of a segment. The second result seeds the checksums of the
// segment's rounds.
func decodeHeader(file string, b []byte) (header, uint32, error) {
	if len(b) < segmentHead || string(b[:8]) != segmentMagic {
		return header{}, 0, corrupt(file, 0, "this is not a segment of a log")
	}
	le := binary.LittleEndian
	sum := le.Uint32(b[12:])
	if sum != headerChecksum(b) {
		return header{}, 0, corrupt(file, 0, "the checksum of the header does not match")
	}
	if v := le.Uint32(b[8:]); v != formatVersion {
		return header{}, 0, &VersionError{File: file, Version: v}
	}
	h := header{
		number:    le.Uint64(b[16:]),
		nonce:     le.Uint64(b[40:]),
		size:      int64(le.Uint64(b[48:])),
		prevEnd:   int64(le.Uint64(b[56:])),
		prevChain: le.Uint32(b[64:]),
		lastIndex: le.Uint64(b[72:]),
		lastTerm:  le.Uint64(b[80:]),
	}
	copy(h.log[:], b[24:])
	return h, sum, nil
}

// head is the head of a round.
type head struct {
	bodySum uint32
	length  uint32 // bytes of the body without padding
	records uint32
	number  uint64 // 1, 2, 3 … within the segment
	offset  int64  // its offset in the segment
}

// padded returns the length of a body with its padding.
func padded(length uint32) int64 {
	return (int64(length) + roundAlign - 1) &^ (roundAlign - 1)
}

// end returns the offset of the next round.
func (h *head) end() int64 { return h.offset + roundHead + padded(h.length) }

func (h *head) encode(b []byte, seed uint32) {
	le := binary.LittleEndian
	le.PutUint32(b[4:], h.bodySum)
	le.PutUint32(b[8:], h.length)
	le.PutUint32(b[12:], h.records)
	le.PutUint64(b[16:], h.number)
	le.PutUint64(b[24:], uint64(h.offset))
	le.PutUint32(b, checksum(seed, b[4:roundHead]))
}

// decodeHead decodes the head of a round and reports whether it is valid. The caller checks its
// position.
func decodeHead(b []byte, seed uint32) (head, bool) {
	le := binary.LittleEndian
	if len(b) < roundHead || le.Uint32(b) != checksum(seed, b[4:roundHead]) {
		return head{}, false
	}
	h := head{
		bodySum: le.Uint32(b[4:]),
		length:  le.Uint32(b[8:]),
		records: le.Uint32(b[12:]),
		number:  le.Uint64(b[16:]),
		offset:  int64(le.Uint64(b[24:])),
	}
	return h, h.length <= maxRound
}

// sealRound makes buf, which starts with room for a head, a round: it pads the body and fills
// in the head. It returns the round and the checksum of its body, which chains the next round.
func sealRound(buf []byte, records uint32, number uint64, offset int64, seed, chain uint32) ([]byte, uint32) {
	h := head{length: uint32(len(buf) - roundHead), records: records, number: number, offset: offset}
	var zeros [roundAlign]byte
	buf = append(buf, zeros[:padded(h.length)-int64(h.length)]...)
	h.bodySum = checksum(chain, buf[roundHead:])
	h.encode(buf, seed)
	return buf, h.bodySum
}
