package fastzstd

import "math/bits"

// The alphabets of sequences, with the format's names.
const (
	maxLL, maxOF, maxML = 35, 31, 52 // largest codes
	logLL, logOF, logML = 9, 8, 9    // largest tables
)

// predefined are the distributions that a block may use without writing them.
var (
	predefinedLL = newPredefined(6, []int16{
		4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1,
	})
	predefinedOF = newPredefined(5, []int16{
		1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1,
	})
	predefinedML = newPredefined(6, []int16{
		1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
		1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1,
	})
)

func newPredefined(log uint8, norm []int16) *fseTable {
	t := &fseTable{mode: modePredefined}
	t.build(norm, log)
	return t
}

// How the table of an alphabet is encoded.
const (
	modePredefined = 0
	modeRLE        = 1
	modeCompressed = 2
)

// fseSymbol says how a symbol leaves a state: see RFC 8878, section 4.1, read backwards.
type fseSymbol struct {
	deltaBits  uint32
	deltaState int32
}

// fseTable encodes the symbols of one alphabet.
type fseTable struct {
	mode    byte
	log     uint8
	symbols [64]fseSymbol
	next    [1 << logLL]uint16
	head    []byte // describes the table to the decoder
	norm    [64]int16
}

// rle makes a table of one symbol, which takes no bits.
func (t *fseTable) rle(symbol byte) {
	t.mode, t.log = modeRLE, 0
	t.next[0] = 0
	t.symbols[symbol] = fseSymbol{}
	t.head = append(t.head[:0], symbol)
}

// compressed makes a table for symbols with the given counts; at least two are not 0.
func (t *fseTable) compressed(counts []uint32, total int, maxLog uint8) {
	t.mode = modeCompressed
	last := len(counts) - 1
	for counts[last] == 0 {
		last--
	}
	log := uint8(min(max(bits.Len32(uint32(total-1))-3, 6), int(maxLog)))
	norm := t.norm[:last+1]
	normalize(norm, counts, total, log)
	t.head = appendDistribution(t.head[:0], norm, log)
	t.build(norm, log)
}

// normalize scales counts so that they add up to a table's size. A symbol with less than one
// place gets -1 ("less than 1" in the RFC).
func normalize(norm []int16, counts []uint32, total int, log uint8) {
	size := 1 << log
	sum, largest := 0, 0
	for s := range norm {
		c := counts[s]
		if c == 0 {
			norm[s] = 0
			continue
		}
		n := (uint64(c)*uint64(size)*2 + uint64(total)) / (2 * uint64(total)) // rounded
		if n == 0 {
			norm[s] = -1
			sum++
			continue
		}
		norm[s] = int16(n)
		sum += int(n)
		if norm[s] > norm[largest] {
			largest = s
		}
	}
	if sum <= size {
		norm[largest] += int16(size - sum)
		return
	}
	for sum > size { // few rounds: each symbol was rounded up by less than one
		at := 0
		for s := range norm {
			if norm[s] > norm[at] {
				at = s
			}
		}
		norm[at]--
		sum--
	}
}

// build makes the table of a distribution.
func (t *fseTable) build(norm []int16, log uint8) {
	t.log = log
	size := 1 << log
	var starts [65]uint16
	var spread [1 << logLL]byte
	high := size - 1
	for s, n := range norm {
		if n == -1 {
			starts[s+1] = starts[s] + 1
			spread[high] = byte(s)
			high--
			continue
		}
		starts[s+1] = starts[s] + uint16(n)
	}
	step, mask, at := size>>1+size>>3+3, size-1, 0
	for s, n := range norm {
		for range max(int(n), 0) {
			spread[at] = byte(s)
			at = (at + step) & mask
			for at > high {
				at = (at + step) & mask
			}
		}
	}
	for u := range size {
		s := spread[u]
		t.next[starts[s]] = uint16(size + u)
		starts[s]++
	}
	total := int32(0)
	for s, n := range norm {
		switch n {
		case 0:
			t.symbols[s] = fseSymbol{}
		case -1, 1:
			t.symbols[s] = fseSymbol{uint32(log)<<16 - uint32(size), total - 1}
			total++
		default:
			out := uint32(log) - uint32(bits.Len16(uint16(n-1))-1)
			t.symbols[s] = fseSymbol{out<<16 - uint32(n)<<out, total - int32(n)}
			total += int32(n)
		}
	}
}

// first returns the state after the last symbol of a stream, which is the first to be encoded.
func (t *fseTable) first(symbol byte) uint32 {
	if t.mode == modeRLE {
		return 0
	}
	d := t.symbols[symbol]
	n := (d.deltaBits + 1<<15) >> 16
	return uint32(t.next[int32((n<<16-d.deltaBits)>>n)+d.deltaState])
}

// appendDistribution appends a distribution in the format of RFC 8878, section 4.1.1.
func appendDistribution(out []byte, norm []int16, log uint8) []byte {
	acc, n := uint32(log-5), uint(4)
	remaining, threshold, width := int32(1)<<log+1, int32(1)<<log, uint(log)+1
	flush := func() {
		for n >= 8 {
			out = append(out, byte(acc))
			acc >>= 8
			n -= 8
		}
	}
	zero := false
	for s := 0; s < len(norm) && remaining > 1; {
		if zero {
			from := s
			for norm[s] == 0 { // the last one is not
				s++
			}
			for ; s-from >= 3; from += 3 {
				acc |= 3 << n
				n += 2
				flush()
			}
			acc |= uint32(s-from) << n
			n += 2
			flush()
		}
		c := int32(norm[s])
		s++
		most := 2*threshold - 1 - remaining
		remaining -= max(c, -c)
		c++
		zero = c == 1
		if c >= threshold {
			c += most
		}
		acc |= uint32(c) << n
		n += width
		if c < most {
			n--
		}
		for remaining < threshold {
			width--
			threshold >>= 1
		}
		flush()
	}
	if n > 0 {
		out = append(out, byte(acc))
	}
	return out
}
