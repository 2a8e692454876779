package wire

import "fmt"

// Fields of a Result, as bits of the bitmap that precedes them, in the order of encoding. Found
// and More are bits only.
const (
	isFound = 1 << iota
	hasResultValue
	hasNumber
	hasResultCode
	hasResultRevision
	isMore
	hasResultLease
	hasResultPairs
	hasResults

	resultFields = hasResults<<1 - 1
)

// maxResultDepth is the nesting depth of results: those of a Transaction have results of Many,
// which have results of Get.
const maxResultDepth = 2

func (r *Result) fields() uint64 {
	var f uint64
	set := func(present bool, bit uint64) {
		if present {
			f |= bit
		}
	}
	set(r.Found, isFound)
	set(len(r.Value) != 0, hasResultValue)
	set(r.Number != 0, hasNumber)
	set(r.Code != 0, hasResultCode)
	set(r.Revision != 0, hasResultRevision)
	set(r.More, isMore)
	set(r.Lease != 0, hasResultLease)
	set(len(r.Pairs) != 0, hasResultPairs)
	set(len(r.Results) != 0, hasResults)
	return f
}

// Append appends the binary form of r to b.
func (r *Result) Append(b []byte) []byte {
	f := r.fields()
	b = appendUint(b, f)
	if f&hasResultValue != 0 {
		b = appendString(b, r.Value)
	}
	if f&hasNumber != 0 {
		b = appendInt(b, r.Number)
	}
	if f&hasResultCode != 0 {
		b = append(b, r.Code)
	}
	if f&hasResultRevision != 0 {
		b = appendUint(b, r.Revision)
	}
	if f&hasResultLease != 0 {
		b = appendUint(b, r.Lease)
	}
	if f&hasResultPairs != 0 {
		b = appendPairs(b, r.Pairs)
	}
	if f&hasResults != 0 {
		b = appendUint(b, uint64(len(r.Results)))
		for i := range r.Results {
			b = r.Results[i].Append(b)
		}
	}
	return b
}

// Size returns the number of bytes that Append appends.
func (r *Result) Size() int {
	f := r.fields()
	n := sizeUint(f)
	if f&hasResultValue != 0 {
		n += sizeString(len(r.Value))
	}
	if f&hasNumber != 0 {
		n += sizeInt(r.Number)
	}
	if f&hasResultCode != 0 {
		n++
	}
	if f&hasResultRevision != 0 {
		n += sizeUint(r.Revision)
	}
	if f&hasResultLease != 0 {
		n += sizeUint(r.Lease)
	}
	if f&hasResultPairs != 0 {
		n += sizeUint(uint64(len(r.Pairs))) + sizePairs(r.Pairs)
	}
	if f&hasResults != 0 {
		n += sizeUint(uint64(len(r.Results)))
		for i := range r.Results {
			n += r.Results[i].Size()
		}
	}
	return n
}

// ParseResult decodes a result, the whole of b. Keys are copies; values share b's memory.
func ParseResult(b []byte) (Result, error) {
	var v Result
	r := reader{b: b}
	v.read(&r, 0)
	if err := r.end(); err != nil {
		return v, fmt.Errorf("decode result: %w", err)
	}
	return v, nil
}

func (r *Result) read(in *reader, depth int) {
	f := in.bitmap(resultFields)
	*r = Result{Found: f&isFound != 0, More: f&isMore != 0}
	if f&hasResultValue != 0 {
		r.Value = in.presentBytes()
	}
	if f&hasNumber != 0 {
		r.Number = in.presentInt()
	}
	if f&hasResultCode != 0 {
		r.Code = in.presentByte()
	}
	if f&hasResultRevision != 0 {
		r.Revision = in.present()
	}
	if f&hasResultLease != 0 {
		r.Lease = in.present()
	}
	if f&hasResultPairs != 0 {
		r.Pairs = in.pairs(MaxResult)
	}
	if f&hasResults != 0 {
		r.readResults(in, depth)
	}
}

func (r *Result) readResults(in *reader, depth int) {
	if depth >= maxResultDepth {
		in.fail(errDepth)
		return
	}
	n := in.count(MaxItems, 1)
	// Memory is allocated for what was read, not for the announced length.
	r.Results = make([]Result, 0, min(n, 64))
	for range n {
		var inner Result
		inner.read(in, depth+1)
		if in.err != nil {
			return
		}
		r.Results = append(r.Results, inner)
	}
}
