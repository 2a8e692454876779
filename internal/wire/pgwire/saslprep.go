package pgwire

import (
	"sort"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// preparePassword applies SASLprep (RFC 4013) to a password before SCRAM hashes it. As in
// PostgreSQL, a password that SASLprep rejects, or that is not UTF-8, or that maps to nothing,
// is used unchanged.
func preparePassword(password string) string {
	if isASCII(password) {
		return password
	}
	if prepared, ok := saslprep(password); ok && prepared != "" {
		return prepared
	}
	return password
}

// isASCII reports whether s is ASCII. SASLprep prohibits control characters, and a rejected
// password is used unchanged, so every ASCII password is used unchanged.
func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// saslprep returns the prepared form of s; ok is false if there is none.
func saslprep(s string) (prepared string, ok bool) {
	if !utf8.ValidString(s) {
		return "", false
	}
	mapped := strings.Map(func(r rune) rune {
		switch {
		case saslSpaces.has(r):
			return ' '
		case saslDropped.has(r):
			return -1
		}
		return r
	}, s)
	prepared = norm.NFKC.String(mapped)
	var hasRandAL, hasL bool
	for _, r := range prepared {
		if saslProhibited.has(r) || saslUnassigned.has(r) {
			return "", false
		}
		hasRandAL = hasRandAL || saslRandAL.has(r)
		hasL = hasL || saslL.has(r)
	}
	if !hasRandAL {
		return prepared, true
	}
	// RFC 3454 section 6: a text with right-to-left characters has no left-to-right ones, and
	// begins and ends with a right-to-left one.
	first, _ := utf8.DecodeRuneInString(prepared)
	last, _ := utf8.DecodeLastRuneInString(prepared)
	return prepared, !hasL && saslRandAL.has(first) && saslRandAL.has(last)
}

// runeSet is a set of code points: pairs of first and last, ascending, with gaps between them.
type runeSet []rune

func (s runeSet) has(r rune) bool {
	// The first pair that ends at r or after it.
	i := sort.Search(len(s)/2, func(i int) bool { return s[2*i+1] >= r })
	return 2*i < len(s) && s[2*i] <= r
}
