// Package lexicon has what the scanners of weir's SQL dialects share below their grammars:
// folding bytes to lower case, word tables that are searched without allocating, the writer of
// normal forms, the position in parentheses at which a statement begins (Nesting), and an
// INSERT that may share a statement with others (Shape).
//
// Identifiers of all dialects consist of ASCII letters, digits, "_", "$" and
// bytes above 127, and are compared without the case of ASCII letters.
package lexicon

import "strings"

// Fold maps the bytes of an identifier to lower case and all others to 0.
// Bytes above 127 are letters and are not folded.
var Fold = func() (t [256]byte) {
	for c := range t {
		switch {
		case 'A' <= c && c <= 'Z':
			t[c] = byte(c) + 'a' - 'A'
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '_', c == '$', c >= 128:
			t[c] = byte(c)
		}
	}
	return t
}()

// IsSpace reports whether c is white space for the servers' lexers.
func IsSpace(c byte) bool {
	return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\f' || c == '\v'
}

// EqualFold reports whether word, folded to lower case, equals lower.
func EqualFold(word, lower string) bool {
	if len(word) != len(lower) {
		return false
	}
	for i := range len(word) {
		if Fold[word[i]] != lower[i] {
			return false
		}
	}
	return true
}

// Lower returns name with its ASCII letters in lower case. It allocates only if it changes a
// letter.
func Lower(name string) string {
	i := 0
	for i < len(name) && (name[i] < 'A' || name[i] > 'Z') {
		i++
	}
	if i == len(name) {
		return name
	}
	b := []byte(name)
	for ; i < len(b); i++ {
		if c := b[i]; 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// HashBasis and HashPrime are the constants of FNV-1a, 32 bits, over folded bytes: a lexer
// computes the hash of a word while it reads the word.
const (
	HashBasis uint32 = 2166136261
	HashPrime uint32 = 16777619
)

// Hash returns the hash of a word.
func Hash(word string) uint32 {
	h := HashBasis
	for i := range len(word) {
		h = (h ^ uint32(Fold[word[i]])) * HashPrime
	}
	return h
}

// Table is a read-only open-addressing hash table of lower-case words. A slot holds 1 + index
// into words, or 0 if free; at most half of them are used.
type Table struct {
	words []string
	slots []uint16
	mask  uint32
}

// NewTable returns the table of words, which must be distinct; it keeps the slice.
func NewTable(words []string) *Table {
	size := 16
	for size < 4*len(words) {
		size *= 2
	}
	t := &Table{words: words, slots: make([]uint16, size), mask: uint32(size - 1)}
	for i, w := range words {
		at := spread(Hash(w)) & t.mask
		for t.slots[at] != 0 {
			at = (at + 1) & t.mask
		}
		t.slots[at] = uint16(i + 1)
	}
	return t
}

// spread mixes the high bits of an FNV hash, which are the best, into the low bits.
func spread(h uint32) uint32 { return h ^ h>>15 }

// Find returns the index of word, whose Hash is h, or -1. With fold, case is ignored.
func (t *Table) Find(word string, h uint32, fold bool) int {
	for at := spread(h) & t.mask; ; at = (at + 1) & t.mask {
		i := int(t.slots[at]) - 1
		if i < 0 {
			return -1
		}
		if t.words[i] == word || fold && EqualFold(word, t.words[i]) {
			return i
		}
	}
}

// Word returns the word with an index that Find returned.
func (t *Table) Word(i int) string { return t.words[i] }

// Len returns the number of words.
func (t *Table) Len() int { return len(t.words) }

// SetNames returns the names of the bits in a set, joined by "|"; "none" for the empty set.
func SetNames(set uint64, names []string) string {
	if set == 0 {
		return "none"
	}
	var in []string
	for i, name := range names {
		if set&(1<<i) != 0 {
			in = append(in, name)
		}
	}
	if set>>len(names) != 0 {
		in = append(in, "invalid")
	}
	return strings.Join(in, "|")
}
