package peer

import "testing"

func TestNonceTellsTheGroup(t *testing.T) {
	group := [8]byte{1, 2, 3, 4, 5, 6, 7, 8}
	one, other := newNonce(group), newNonce(group)
	if one == other {
		t.Error("two handshakes have one nonce")
	}
	if groupOf(one) != group || groupOf(other) != group {
		t.Errorf("nonces %x and %x tell %x and %x", one, other, groupOf(one), groupOf(other))
	}
	if got := groupOf(newNonce([8]byte{})); got != ([8]byte{}) {
		t.Errorf("a nonce without a group tells %x", got)
	}
	one[nonceRandom] ^= 1
	if got := groupOf(one); got != ([8]byte{}) {
		t.Errorf("a nonce whose checksum is wrong tells %x", got)
	}
}
