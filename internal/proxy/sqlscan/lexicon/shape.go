package lexicon

import "hash/maphash"

// A Shape is an INSERT of one row of VALUES, divided where further rows may be inserted: Prefix
// + Tuple [+ "," + Tuple ...] + Suffix is a statement again. The strings are substrings of the
// text.
type Shape struct {
	Prefix    string // from INSERT to just after VALUES
	Tuple     string // the row, from "(" to ")"
	TupleAt   int    // offset of Tuple in the text
	Suffix    string // RETURNING and its list, with what precedes it; "" without RETURNING
	Arity     int    // number of values in Tuple
	Returning bool
	Literals  bool // Tuple contains a constant: string, number, TRUE, FALSE or NULL
}

var shapeSeed = maphash.MakeSeed()

// Key hashes what inserts that may share one statement have in common; params says whether
// Tuple has parameters. It is unpredictable, so that a client cannot construct another's key,
// and differs between processes. Equal keys are only a strong hint: Fits decides.
func (s *Shape) Key(params bool) uint64 {
	var h maphash.Hash
	h.SetSeed(shapeSeed)
	h.WriteString(s.Prefix)
	h.WriteByte(0)
	h.WriteString(s.Suffix)
	h.WriteByte(0)
	if params {
		h.WriteString(s.Tuple)
	}
	h.WriteByte(byte(s.Arity))
	h.WriteByte(byte(s.Arity >> 8))
	return h.Sum64()
}

// Fits reports whether s and o may share one multi-row statement: the same Prefix, Suffix
// and Arity and, if either has parameters, the same Tuple.
func (s *Shape) Fits(o *Shape, params bool) bool {
	if s.Prefix != o.Prefix || s.Suffix != o.Suffix || s.Arity != o.Arity {
		return false
	}
	return !params || s.Tuple == o.Tuple
}
