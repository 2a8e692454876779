package lexicon

import (
	"math"
	"strings"
	"unicode/utf8"
)

// FNV-1a, 64 bits (Fowler, Noll, Vo): stable across processes and versions.
const (
	fnvBasis uint64 = 14695981039346656037
	fnvPrime uint64 = 1099511628211
)

// Normal receives the normal form of a text piece by piece, and keeps either its hash or its
// text.
type Normal struct {
	hash uint64
	text []byte // nil: only the hash is kept
	size int    // bytes written
	max  int    // maximum number of bytes to keep
}

// HashOnly returns a Normal that keeps the hash.
func HashOnly() Normal { return Normal{hash: fnvBasis, max: math.MaxInt} }

// TextUpTo returns a Normal that keeps up to max bytes of text; hint is the expected length.
func TextUpTo(max, hint int) Normal {
	return Normal{text: make([]byte, 0, min(hint, max+utf8.UTFMax)), max: max}
}

// Full reports whether nothing more will be kept.
func (n *Normal) Full() bool { return n.size >= n.max }

// Empty reports whether nothing was written.
func (n *Normal) Empty() bool { return n.size == 0 }

// Write adds text as it is.
func (n *Normal) Write(text string) {
	n.size += len(text)
	if n.text != nil {
		n.text = append(n.text, text...)
		return
	}
	h := n.hash
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * fnvPrime
	}
	n.hash = h
}

// WriteFolded adds a word in lower case.
func (n *Normal) WriteFolded(word string) {
	n.size += len(word)
	if n.text != nil {
		for i := range len(word) {
			n.text = append(n.text, Fold[word[i]])
		}
		return
	}
	h := n.hash
	for i := range len(word) {
		h = (h ^ uint64(Fold[word[i]])) * fnvPrime
	}
	n.hash = h
}

// Sum returns the 64-bit FNV-1a hash of what was written. The Normal must be from HashOnly.
func (n *Normal) Sum() uint64 { return n.hash }

// String returns what was written, cut at max bytes between characters, as valid UTF-8. The
// Normal must be from TextUpTo.
func (n *Normal) String() string {
	text := n.text
	if len(text) > n.max {
		cut := n.max
		for cut > 0 && n.max-cut < utf8.UTFMax && !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut]
	}
	return strings.ToValidUTF8(string(text), "?")
}
