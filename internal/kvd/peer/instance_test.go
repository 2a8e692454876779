package peer

import "testing"

func TestInstanceTellsTheLog(t *testing.T) {
	log := [8]byte{1, 2, 3, 4, 5, 6, 7, 8}
	one, other := newInstance(log), newInstance(log)
	if one == other {
		t.Error("two processes have one instance")
	}
	if logOf(one) != log || logOf(other) != log {
		t.Errorf("instances %x and %x tell %x and %x", one, other, logOf(one), logOf(other))
	}
	if got := logOf(newInstance([8]byte{})); got != ([8]byte{}) {
		t.Errorf("an instance without a log tells %x", got)
	}
}
