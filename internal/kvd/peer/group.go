package peer

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
)

// The nonce of a handshake says to which group of replicas a side belongs, since versions
// that know nothing of groups take no more fields:
//
//	16 bytes  random
//	 8 bytes  Options.Group
//	 8 bytes  the beginning of the SHA-256 of a text and these
//
// Of a side that knows no group, such as a client, all bytes are random, as in those versions.
const (
	nonceRandom = 16
	nonceGroup  = nonceRandom + 8
)

func newNonce(group [8]byte) (n [nonceBytes]byte) {
	_, _ = rand.Read(n[:]) // never fails: crypto/rand ends the program instead
	if group != ([8]byte{}) {
		copy(n[nonceRandom:], group[:])
		copy(n[nonceGroup:], nonceSum(n))
	}
	return n
}

// groupOf returns the group that a nonce tells, zero if it tells none.
func groupOf(n [nonceBytes]byte) (group [8]byte) {
	if bytes.Equal(n[nonceGroup:], nonceSum(n)) {
		copy(group[:], n[nonceRandom:])
	}
	return group
}

func nonceSum(n [nonceBytes]byte) []byte {
	sum := sha256.Sum256(append([]byte("weir kv group"), n[:nonceGroup]...))
	return sum[:nonceBytes-nonceGroup]
}
