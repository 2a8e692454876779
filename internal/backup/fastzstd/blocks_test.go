package fastzstd

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/weirdb/weir/internal/testkit"
)

// The tests of this file write blocks of literals and sequences that they choose: which
// of them the search for matches finds in an input is its own affair, and what the
// format's limits concern comes rarely.

// script is a frame that a test writes block by block, and what it must decode to.
type script struct {
	e    *Encoder
	out  []byte
	want []byte
	rep  [3]uint32 // as the decoder has them
}

func newScript() *script {
	s := &script{e: New(io.Discard), rep: [3]uint32{1, 4, 8}}
	s.out = binary.LittleEndian.AppendUint32(nil, 0xFD2FB528)
	s.out = append(s.out, 1<<2, 9<<3)
	return s
}

// block adds a block, and what a decoder makes of it by RFC 8878, section 3.1.1.4, byte by
// byte. It reports whether the block was compressed.
func (s *script) block(t *testing.T, sequences []sequence, literals []byte, last bool) bool {
	t.Helper()
	start, rep, rest := len(s.want), s.rep, literals
	for _, q := range sequences {
		s.want = append(s.want, rest[:q.literals]...)
		rest = rest[q.literals:]
		code := q.offset
		if q.literals == 0 && code <= 3 {
			code++
		}
		var offset uint32
		switch {
		case q.offset > 3:
			offset = q.offset - 3
			rep = [3]uint32{offset, rep[0], rep[1]}
		case code == 1:
			offset = rep[0]
		case code == 2:
			offset = rep[1]
			rep = [3]uint32{offset, rep[0], rep[2]}
		default:
			offset = rep[2]
			if code == 4 {
				offset = rep[0] - 1
			}
			rep = [3]uint32{offset, rep[0], rep[1]}
		}
		if offset == 0 || int(offset) > len(s.want) || offset > window {
			t.Fatalf("the test's own sequence %+v reaches %d bytes back at %d", q, offset, len(s.want))
		}
		for range q.match + minMatch {
			s.want = append(s.want, s.want[len(s.want)-int(offset)])
		}
	}
	s.want = append(s.want, rest...)
	src := s.want[start:]
	if len(src) > maxBlock {
		t.Fatalf("the test's own block has %d bytes", len(src))
	}
	s.e.held = copy(s.e.literals, literals)
	s.e.found = copy(s.e.sequences, sequences)
	out, seen, err := s.e.appendBlock(s.out, src, last)
	if err != nil {
		t.Fatal(err)
	}
	if s.out = out; seen {
		s.rep = rep
	}
	if last {
		s.out = binary.LittleEndian.AppendUint32(s.out, uint32(xxhash.Sum64(s.want)))
	}
	return seen
}

// checkTool has the zstd program read frames one after the other.
func checkTool(t *testing.T, frames, want []byte) {
	t.Helper()
	tool, err := exec.LookPath("zstd")
	if err != nil {
		t.Log("the zstd program is not installed, and reads nothing here")
		return
	}
	cmd := exec.Command(tool, "-dc")
	cmd.Stdin = bytes.NewReader(frames)
	var said bytes.Buffer
	cmd.Stderr = &said
	got, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, said.Bytes())
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%d bytes came back of %d, and other ones", len(got), len(want))
	}
}

// TestLiterals writes blocks of literals alone: alphabets of all sizes, lengths around
// those at which the format changes.
func TestLiterals(t *testing.T) {
	testkit.Alone(t)
	rng := rand.New(rand.NewPCG(3, 4))
	var frames, all []byte
	kinds := map[string]int{}
	for _, symbols := range []int{1, 2, 3, 127, 128, 129, 255, 256} {
		for _, skewed := range []bool{false, true} {
			for _, n := range []int{1, 31, 32, 63, 64, 65, 256, 1023, 1024, 1025, 4095, 4096, 16383, 16384, 16385, maxBlock - 1, maxBlock} {
				literals := make([]byte, n)
				for i := range literals {
					c := rng.IntN(symbols)
					for skewed && c > 0 && rng.IntN(3) > 0 {
						c /= 2
					}
					literals[i] = byte(c * 255 / max(1, symbols-1))
				}
				s := newScript()
				seen := s.block(t, nil, literals, true)
				checkDecoded(t, s.out, s.want)
				kind := "raw block"
				if seen {
					h := s.out[9] // behind both headers
					kind = fmt.Sprintf("literals %d, sizes %d", h&3, h>>2&3)
				}
				kinds[kind]++
				frames, all = append(frames, s.out...), append(all, s.want...)
			}
		}
	}
	checkTool(t, frames, all)
	// All kinds must have come: as they are is no gain without sequences; one symbol;
	// one stream; four streams with lengths of 14 and 18 bits.
	for _, kind := range []string{"raw block", "literals 1, sizes 1", "literals 1, sizes 3", "literals 2, sizes 0", "literals 2, sizes 2", "literals 2, sizes 3"} {
		if kinds[kind] == 0 {
			t.Errorf("no block had %s: %v", kind, kinds)
		}
	}
}

// TestSequences writes sequences of all lengths, distances and numbers, over several
// blocks, the earlier offsets of the format among them.
func TestSequences(t *testing.T) {
	testkit.Alone(t)
	rng := rand.New(rand.NewPCG(5, 6))
	some := func(of ...int) int { return of[rng.IntN(len(of))] }
	var frames, all []byte
	compressed := 0
	modes := map[byte]int{}
	for _, number := range []int{1, 2, 3, 95, 96, 97, 126, 127, 128, 129, 500, 2000, 0x7EFF, 0x7F00, 0x7F01, maxBlock / 4} {
		for round := range 6 {
			s := newScript()
			first := make([]byte, maxBlock)
			for i := range first {
				first[i] = byte('a' + rng.IntN(11))
			}
			s.block(t, nil, first, false)
			for b := range 3 {
				room := maxBlock // of this block
				alike := round%3 == 0
				var sequences []sequence
				var literals []byte
				for left := number; left > 0; left-- {
					spare := room - left*4 // what others need at least
					lit, match := some(0, 0, 1, 2, 15, 16, 17, 31, 32, 63, 64, 65, 127, 128, 4095, 65535, 65536), some(4, 4, 5, 34, 35, 36, 66, 67, 98, 99, 130, 131, 132, 65538, 65539, 65540, maxBlock)
					if alike {
						lit, match = 1, 7
					}
					lit = max(0, min(lit, spare))
					match = max(4, min(match, spare-lit+4))
					far := min(window, len(s.want))
					offset := some(1, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 19, 20, 3+far, 3+rng.IntN(far)+1, 3+rng.IntN(min(far, 300))+1)
					if alike {
						offset = 3 + 77
					}
					if lit == 0 && offset == 3 {
						offset = 1 // one less than the last one may be none
					}
					sequences = append(sequences, sequence{uint32(lit), uint32(offset), uint32(match - minMatch)})
					for range lit {
						literals = append(literals, byte('a'+rng.IntN(11)))
					}
					room -= lit + match
				}
				for range min(room, rng.IntN(100)) {
					literals = append(literals, byte(rng.IntN(256)))
				}
				if s.block(t, sequences, literals, b == 2) {
					compressed++
				}
			}
			checkDecoded(t, s.out, s.want)
			modes[s.e.tableOF.mode]++
			frames, all = append(frames, s.out...), append(all, s.want...)
		}
	}
	checkTool(t, frames, all)
	if compressed < 100 || modes[modeRLE] == 0 || modes[modeCompressed] == 0 {
		t.Errorf("%d blocks were compressed, with tables of offsets %v", compressed, modes)
	}
}

// TestDistributions makes tables of all sizes for distributions that are hard to scale:
// what reads them back must find each state once.
func TestDistributions(t *testing.T) {
	testkit.Alone(t)
	rng := rand.New(rand.NewPCG(7, 8))
	var table fseTable
	for range 20_000 {
		counts := make([]uint32, 2+rng.IntN(maxML))
		total := 0
		for i := range counts {
			if c := rng.IntN(4); c > 0 {
				counts[i] = 1 + rng.Uint32N(1<<rng.IntN(5*c))
				total += int(counts[i])
			}
		}
		counts[0], counts[len(counts)-1] = counts[0]+1, counts[len(counts)-1]+1
		total += 2
		log := uint8(8 + rng.IntN(2))
		table.compressed(counts, total, log)
		sum := 0
		for i, n := range table.norm[:len(counts)] {
			if (n == 0) != (counts[i] == 0) || n < -1 {
				t.Fatalf("a symbol that occurs %d of %d times has %d places", counts[i], total, n)
			}
			sum += max(int(n), -int(n))
		}
		if sum != 1<<table.log || table.log > log {
			t.Fatalf("%d places of %d are taken: %v", sum, 1<<table.log, counts)
		}
		seen := map[uint16]bool{}
		for _, next := range table.next[:sum] {
			seen[next] = true
		}
		if len(seen) != sum {
			t.Fatalf("%d of %d states are reached", len(seen), sum)
		}
	}
}

// TestEnds cuts and joins streams where blocks end: every length around multiples of a
// block, in pieces that end there, too, and empty frames between others.
func TestEnds(t *testing.T) {
	testkit.Alone(t)
	rows := inputs()["rows"]
	e := New(io.Discard)
	var frames, all []byte
	for _, blocks := range []int{1, 2, 4, 5, 8, 9, 12, 13} { // the window is 4, the history 12
		for _, more := range []int{-17, -16, -1, 0, 1, 15, 16, 17} {
			in := rows[:blocks*maxBlock+more]
			for _, piece := range []int{maxBlock, maxBlock + 1, 1 << 30} {
				frame := compress(t, e, in, piece)
				checkDecoded(t, frame, in)
				if piece == maxBlock {
					frames, all = append(frames, frame...), append(all, in...)
					frames = append(frames, compress(t, e, nil, 1)...)
				}
			}
		}
	}
	checkDecoded(t, frames, all)
	checkTool(t, frames, all)
}
