// Package fastzstd compresses to standard zstd frames (RFC 8878) at one level, about that of
// `zstd -1`. It makes backups of rows cheaper, which spend most of their processor time on
// compression. Any zstd decoder reads the frames.
//
// It finds matches with one hash table of positions, over seven bytes each, and searches less
// often the longer it finds none. An [Encoder] is used by one goroutine and starts none.
package fastzstd

import (
	"encoding/binary"
	"errors"
	"io"
	"math/bits"
	"unsafe"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/huff0"
)

const (
	maxBlock = 128 << 10 // of the format
	window   = 512 << 10
	history  = window + 8*maxBlock
	minMatch = 3  // of the format
	slack    = 16 // bytes after buffers that may be read and written
	tableLog = 14

	// An entry of the table is a position, with as many bits as distinguish the positions of a
	// window, and a part of the hash, which rules out most positions that would not match.
	tagBits = 12
	tagMask = 1<<tagBits - 1
	posMask = 1<<(32-tagBits) - 1
)

// Encoder is an [io.WriteCloser] that compresses. Reset begins its stream.
type Encoder struct {
	w   io.Writer
	err error
	sum xxhash.Digest // of the input

	// buf[:n] is the history and, from begin on, the input to be compressed.
	buf      []byte
	begin, n int
	base     uint32 // position of buf[0] in the stream, modulo 2^32
	table    [1 << tableLog]uint32
	rep      [3]uint32

	sequences []sequence // sequences[:found], and their codes
	found     int
	codes     []seqCode
	literals  []byte // literals[:held]
	held      int
	out       []byte
	headed    bool

	huff                      huff0.Scratch
	tableLL, tableOF, tableML fseTable
}

// New returns an encoder that writes to w. It uses about 3 MB of memory.
func New(w io.Writer) *Encoder {
	e := &Encoder{
		buf: make([]byte, history+slack), sequences: make([]sequence, maxBlock/4+1), codes: make([]seqCode, maxBlock/4+1),
		literals: make([]byte, maxBlock+slack), out: make([]byte, 0, maxBlock+maxBlock/4),
	}
	e.huff.Reuse = huff0.ReusePolicyNone
	e.Reset(w)
	return e
}

// Reset begins another stream; the previous one may be incomplete.
func (e *Encoder) Reset(w io.Writer) {
	e.w, e.err, e.headed = w, nil, false
	e.sum.Reset()
	e.rep = [3]uint32{1, 4, 8}
	e.begin, e.n, e.base = 0, 0, 0
	clear(e.table[:])
}

// Sum64 returns the XXH64 of the input. The frame has its lower half.
func (e *Encoder) Sum64() uint64 { return e.sum.Sum64() }

// Write implements io.Writer.
func (e *Encoder) Write(p []byte) (int, error) {
	if e.err != nil {
		return 0, e.err
	}
	_, _ = e.sum.Write(p) // never fails
	done := 0
	for {
		m := copy(e.buf[e.n:min(e.begin+maxBlock, history)], p[done:])
		e.n += m
		if done += m; done == len(p) {
			return done, nil
		}
		if e.block(false); e.err != nil {
			return done, e.err
		}
	}
}

// Close ends the stream. It does not close the underlying writer.
func (e *Encoder) Close() error {
	if e.err != nil {
		return e.err
	}
	if e.block(true); e.err != nil {
		return e.err
	}
	e.err = errors.New("the zstd stream has ended")
	return nil
}

// block compresses the input since the last block, and writes it.
func (e *Encoder) block(last bool) {
	out := e.out[:0]
	if !e.headed {
		e.headed = true
		out = binary.LittleEndian.AppendUint32(out, 0xFD2FB528)
		out = append(out, 1<<2, byte(bits.Len(window)-11)<<3) // a checksum; the window
	}
	src := e.buf[e.begin:e.n]
	switch {
	case len(src) < 16:
		out = append(appendHeader(out, last, blockRaw, len(src)), src...)
	default:
		before := e.rep
		e.find()
		var seen bool
		var err error
		if out, seen, err = e.appendBlock(out, src, last); err != nil {
			e.err = err
			return
		}
		if !seen {
			e.rep = before
		}
	}
	if last {
		out = binary.LittleEndian.AppendUint32(out, uint32(e.sum.Sum64()))
	}
	e.begin = e.n
	e.out = out
	if _, e.err = e.w.Write(out); e.err != nil {
		return
	}
	if e.n+maxBlock > history {
		e.slide()
	}
}

// slide makes room for the next block: it moves the window to the front.
func (e *Encoder) slide() {
	d := e.n - window
	copy(e.buf, e.buf[d:e.n])
	e.n, e.begin = window, window
	e.base += uint32(d)
}

// The bytes of a block are read and written without bounds checks, which took an eighth of the
// encoder's time. Everything that find and extend access lies in buf or in literals: positions
// are at least low, loads begin before limit or at most 8 bytes after it, and both buffers are
// followed by slack. Under the race detector, checkptr would stop a test that accesses memory
// outside of them.

func load64(b unsafe.Pointer, i int) uint64 {
	return binary.LittleEndian.Uint64((*[8]byte)(unsafe.Add(b, i))[:])
}

func load32(b unsafe.Pointer, i int) uint32 {
	return binary.LittleEndian.Uint32((*[4]byte)(unsafe.Add(b, i))[:])
}

func load8(b unsafe.Pointer, i int) byte { return *(*byte)(unsafe.Add(b, i)) }

func store64(b unsafe.Pointer, i int, v uint64) {
	binary.LittleEndian.PutUint64((*[8]byte)(unsafe.Add(b, i))[:], v)
}

// hash hashes the lower seven bytes: shorter matches cost more time than they save space.
func hash(v uint64) uint64 { return (v << 8 * 58295818150454627) >> (64 - tableLog - tagBits) }

// find divides buf[begin:n] into sequences and literals.
func (e *Encoder) find() {
	end := e.n
	buf := unsafe.Pointer(&e.buf[:e.n+slack][0])
	base := e.base
	low := max(0, end-window)
	table, seqs, n := &e.table, e.sequences, 0
	lits, held := unsafe.Pointer(&e.literals[0]), 0
	ip, anchor := e.begin, e.begin
	limit := end - 12
	rep1, rep2, rep3 := int(e.rep[0]), int(e.rep[1]), int(e.rep[2])
	for {
		// Look for a match.
		var match, length int
		var offset uint32
		for {
			if ip > limit {
				goto done
			}
			v := load64(buf, ip)
			h, h1 := hash(v), hash(v>>8)
			c, c1 := table[h>>tagBits], table[h1>>tagBits]
			now := uint32(ip) + base
			table[h>>tagBits], table[h1>>tagBits] = now<<tagBits|uint32(h)&tagMask, (now+1)<<tagBits|uint32(h1)&tagMask
			if at := ip + 2 - rep1; at >= low && load32(buf, at) == uint32(v>>16) {
				ip += 2
				match, offset = at, 1
				break
			}
			if (c^uint32(h))&tagMask == 0 {
				d := int((now - c>>tagBits) & posMask)
				if cand := ip - d; d != 0 && cand >= low && load32(buf, cand) == uint32(v) {
					match, offset = cand, uint32(d)+3
					break
				}
			}
			if (c1^uint32(h1))&tagMask == 0 {
				d := int((now + 1 - c1>>tagBits) & posMask)
				if cand := ip + 1 - d; d != 0 && cand >= low && load32(buf, cand) == uint32(v>>8) {
					ip++
					match, offset = cand, uint32(d)+3
					break
				}
			}
			ip += 2 + (ip-anchor)>>6
		}
		// Extend it in both directions.
		length = 4
		for ip > anchor && match > low && load8(buf, ip-1) == load8(buf, match-1) {
			ip--
			match--
			length++
		}
		if ip+length <= limit { // most matches are short
			if x := load64(buf, ip+length) ^ load64(buf, match+length); x != 0 {
				length += bits.TrailingZeros64(x) >> 3
			} else {
				length += 8 + extend(buf, end, ip+length+8, match+length+8)
			}
		} else {
			length += extend(buf, end, ip+length, match+length)
		}
		if ip == anchor && offset == 1 {
			// Without literals before it, 1 would mean the second offset.
			offset = uint32(rep1) + 3
		}
		if run := ip - anchor; run <= 16 { // both buffers have room
			store64(lits, held, load64(buf, anchor))
			store64(lits, held+8, load64(buf, anchor+8))
		} else {
			copy(e.literals[held:], e.buf[anchor:ip])
		}
		held += ip - anchor
		seqs[n] = sequence{uint32(ip - anchor), offset, uint32(length - minMatch)}
		n++
		if offset > 3 {
			rep1, rep2, rep3 = int(offset-3), rep1, rep2
		}
		inside := ip + 2
		ip += length
		anchor = ip
		if ip > limit {
			break
		}
		v := load64(buf, inside)
		h := hash(v)
		table[h>>tagBits] = (base+uint32(inside))<<tagBits | uint32(h)&tagMask
		h = hash(load64(buf, ip-2))
		table[h>>tagBits] = (base+uint32(ip-2))<<tagBits | uint32(h)&tagMask
		// The next bytes may repeat the previous match.
		for ip <= limit && ip-rep2 >= low && load32(buf, ip) == load32(buf, ip-rep2) {
			length := 4 + extend(buf, end, ip+4, ip-rep2+4)
			h := hash(load64(buf, ip))
			table[h>>tagBits] = (base+uint32(ip))<<tagBits | uint32(h)&tagMask
			seqs[n] = sequence{0, 1, uint32(length - minMatch)}
			n++
			rep1, rep2 = rep2, rep1
			ip += length
			anchor = ip
		}
	}
done:
	held += copy(e.literals[held:], e.buf[anchor:end])
	e.held, e.found = held, n
	e.rep = [3]uint32{uint32(rep1), uint32(rep2), uint32(rep3)}
}

// extend returns how many bytes from a and from b on are equal. b is before a.
func extend(buf unsafe.Pointer, end, a, b int) int {
	n := 0
	for a+n+8 <= end {
		if x := load64(buf, a+n) ^ load64(buf, b+n); x != 0 {
			return n + bits.TrailingZeros64(x)>>3
		}
		n += 8
	}
	for a+n < end && load8(buf, a+n) == load8(buf, b+n) {
		n++
	}
	return n
}
