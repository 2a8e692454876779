package fastzstd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/klauspost/compress/huff0"
)

// sequence is a run of literals and the match after it.
type sequence struct {
	literals uint32
	offset   uint32 // as the format codes it: 1 to 3 are earlier offsets, others are the offset plus 3
	match    uint32 // length minus minMatch
}

// Kinds of blocks and of literals.
const (
	blockRaw, blockRLE, blockCompressed       = 0, 1, 2
	literalsRaw, literalsRLE, literalsHuffman = 0, 1, 2
)

// appendHeader appends the header of a block.
func appendHeader(out []byte, last bool, kind, size int) []byte {
	h := uint32(kind)<<1 | uint32(size)<<3
	if last {
		h |= 1
	}
	return append(out, byte(h), byte(h>>8), byte(h>>16))
}

// appendBlock appends the block for src. It reports whether the decoder sees the sequences: if
// they would save nothing, src is stored uncompressed.
func (e *Encoder) appendBlock(out, src []byte, last bool) (_ []byte, seen bool, err error) {
	start := len(out)
	raw := func() []byte { return append(appendHeader(out[:start], last, blockRaw, len(src)), src...) }
	out = append(out, 0, 0, 0)
	if out, err = e.appendLiterals(out, e.literals[:e.held]); err != nil {
		return nil, false, err
	}
	if len(out)-start >= len(src) {
		return raw(), false, nil
	}
	out = e.appendSequences(out)
	size := len(out) - start - 3
	if size >= len(src)-len(src)>>7 || size > maxBlock {
		return raw(), false, nil
	}
	appendHeader(out[:start], last, blockCompressed, size)
	return out, true, nil
}

// appendLiterals appends the section of literals.
func (e *Encoder) appendLiterals(out, literals []byte) ([]byte, error) {
	n := len(literals)
	if n < 64 {
		return appendPlain(out, literals), nil
	}
	var coded []byte
	var err error
	one := n < 1024
	if one {
		coded, _, err = huff0.Compress1X(literals, &e.huff)
	} else {
		coded, _, err = huff0.Compress4X(literals, &e.huff)
	}
	switch {
	case errors.Is(err, huff0.ErrIncompressible):
		return appendPlain(out, literals), nil
	case errors.Is(err, huff0.ErrUseRLE):
		out = appendPlainHeader(out, literalsRLE, n)
		return append(out, literals[0]), nil
	case err != nil:
		return nil, fmt.Errorf("compress literals: %w", err)
	case len(coded)+n>>6 >= n:
		return appendPlain(out, literals), nil
	}
	// The header's size depends on the number of bits of both lengths.
	size := len(coded)
	switch width := bits.Len(uint(max(n, size))); {
	case one && width <= 10:
		h := uint32(literalsHuffman) | uint32(n)<<4 | uint32(size)<<14
		out = append(out, byte(h), byte(h>>8), byte(h>>16))
	case width <= 10:
		h := uint32(literalsHuffman) | 1<<2 | uint32(n)<<4 | uint32(size)<<14
		out = append(out, byte(h), byte(h>>8), byte(h>>16))
	case width <= 14:
		h := uint32(literalsHuffman) | 2<<2 | uint32(n)<<4 | uint32(size)<<18
		out = binary.LittleEndian.AppendUint32(out, h)
	default:
		h := uint64(literalsHuffman) | 3<<2 | uint64(n)<<4 | uint64(size)<<22
		out = append(out, byte(h), byte(h>>8), byte(h>>16), byte(h>>24), byte(h>>32))
	}
	return append(out, coded...), nil
}

// appendPlain appends uncompressed literals.
func appendPlain(out, literals []byte) []byte {
	return append(appendPlainHeader(out, literalsRaw, len(literals)), literals...)
}

func appendPlainHeader(out []byte, kind, n int) []byte {
	switch {
	case n < 1<<5:
		return append(out, byte(kind|n<<3))
	case n < 1<<12:
		return append(out, byte(kind|1<<2|n<<4), byte(n>>4))
	}
	return append(out, byte(kind|3<<2|n<<4), byte(n>>4), byte(n>>12))
}

// codesLL and codesML are the codes of small lengths, extra* the number of bits after a code,
// and base* the smallest length of a code.
var (
	codesLL = codes(64, extraLL[:])
	codesML = codes(128, extraML[:])
	extraLL = [64]uint8{16: 1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	extraML = [64]uint8{32: 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
)

func codes(n int, extra []uint8) []uint8 {
	out := make([]uint8, 0, n)
	for code := 0; len(out) < n; code++ {
		for range 1 << extra[code] {
			out = append(out, uint8(code))
		}
	}
	return out[:n]
}

func codeLL(n uint32) uint8 {
	if n < 64 {
		return codesLL[n]
	}
	return uint8(bits.Len32(n)) + 18
}

func codeML(n uint32) uint8 {
	if n < 128 {
		return codesML[n]
	}
	return uint8(bits.Len32(n)) + 35
}

// seqCode is a sequence as codes.
type seqCode struct{ ll, of, ml uint8 }

// appendSequences appends the section of sequences.
func (e *Encoder) appendSequences(out []byte) []byte {
	n := e.found
	switch {
	case n == 0:
		return append(out, 0)
	case n < 128:
		out = append(out, byte(n))
	case n < 0x7F00:
		out = append(out, byte(n>>8+128), byte(n))
	default:
		out = append(out, 255, byte(n-0x7F00), byte((n-0x7F00)>>8))
	}
	var counts [3][64]uint32
	codes := e.codes[:n]
	for i := range codes {
		s := &e.sequences[i]
		c := seqCode{codeLL(s.literals), uint8(bits.Len32(s.offset) - 1), codeML(s.match)}
		codes[i] = c
		counts[0][c.ll&63]++
		counts[1][c.of&63]++
		counts[2][c.ml&63]++
	}
	ll := choose(&e.tableLL, predefinedLL, counts[0][:maxLL+1], n, codes[0].ll, logLL)
	of := choose(&e.tableOF, predefinedOF, counts[1][:maxOF+1], n, codes[0].of, logOF)
	ml := choose(&e.tableML, predefinedML, counts[2][:maxML+1], n, codes[0].ml, logML)
	out = append(out, ll.mode<<6|of.mode<<4|ml.mode<<2)
	for _, t := range []*fseTable{ll, of, ml} {
		if t.mode != modePredefined {
			out = append(out, t.head...)
		}
	}
	return e.appendBits(out, ll, of, ml)
}

// fewSequences is the number of sequences below which a table of their own costs more than it
// saves.
const fewSequences = 96

// choose returns the table for one alphabet.
func choose(own, predefined *fseTable, counts []uint32, n int, first uint8, log uint8) *fseTable {
	switch {
	case int(counts[first]) == n:
		own.rle(first)
		return own
	case n < fewSequences:
		return predefined
	}
	own.compressed(counts, n, log)
	return own
}

// appendBits appends the bits of all sequences, the last one first.
func (e *Encoder) appendBits(out []byte, ll, of, ml *fseTable) []byte {
	n := e.found
	// Room for all: a sequence takes at most 26 bits of states and 52 others.
	at := len(out)
	if need := at + n*10 + 32; cap(out) < need {
		out = append(make([]byte, 0, need+need/2), out...)
	}
	out = out[:cap(out)]
	codes, sequences := e.codes[:n], e.sequences[:n]
	c, s := codes[n-1], &sequences[n-1]
	stateML, stateOF, stateLL := ml.first(c.ml), of.first(c.of), ll.first(c.ll)
	var acc uint64
	var have uint
	add := func(v uint32, width uint) {
		acc |= uint64(v&(1<<width-1)) << have
		have += width
	}
	to := unsafe.Pointer(&out[0])
	flush := func() {
		store64(to, at, acc)
		at += int(have >> 3)
		acc >>= have &^ 7
		have &= 7
	}
	add(s.literals, uint(extraLL[c.ll]))
	add(s.match, uint(extraML[c.ml]))
	flush()
	add(s.offset, uint(c.of))
	flush()
	for i := n - 2; i >= 0; i-- {
		c, s := codes[i], &sequences[i]
		cl, co, cm := c.ll&63, c.of&63, c.ml&63
		d := of.symbols[co]
		w := uint(stateOF+d.deltaBits) >> 16
		acc |= uint64(stateOF&(1<<w-1)) << (have & 63)
		have += w
		stateOF = uint32(of.next[(int32(stateOF>>w)+d.deltaState)&(1<<logLL-1)])
		d = ml.symbols[cm]
		w = uint(stateML+d.deltaBits) >> 16
		acc |= uint64(stateML&(1<<w-1)) << (have & 63)
		have += w
		stateML = uint32(ml.next[(int32(stateML>>w)+d.deltaState)&(1<<logLL-1)])
		d = ll.symbols[cl]
		w = uint(stateLL+d.deltaBits) >> 16
		acc |= uint64(stateLL&(1<<w-1)) << (have & 63)
		have += w
		stateLL = uint32(ll.next[(int32(stateLL>>w)+d.deltaState)&(1<<logLL-1)])
		xl, xm := uint(extraLL[cl]), uint(extraML[cm])
		if xl+xm+uint(co) > 31 { // with 26 bits of states and 7 pending
			flush()
			add(s.literals, xl)
			add(s.match, xm)
			flush()
		} else {
			acc |= uint64(s.literals&(1<<xl-1)) << (have & 63)
			have += xl
			acc |= uint64(s.match&(1<<xm-1)) << (have & 63)
			have += xm
		}
		acc |= uint64(s.offset&(1<<(co&31)-1)) << (have & 63)
		have += uint(co)
		flush()
	}
	add(stateML, uint(ml.log))
	add(stateOF, uint(of.log))
	add(stateLL, uint(ll.log))
	add(1, 1) // ends the stream
	have = (have + 7) &^ 7
	flush()
	return out[:at]
}
