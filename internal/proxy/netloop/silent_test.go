package netloop

import (
	"net"
	"testing"
)

func TestSilentClosesTheOldest(t *testing.T) {
	s := NewSilent(2)
	closed := func(c net.Conn) bool {
		errs := make(chan error, 1)
		go func() { _, err := c.Write([]byte{1}); errs <- err }()
		return <-errs != nil
	}
	var near, far []net.Conn
	for range 5 {
		a, b := net.Pipe()
		near, far = append(near, a), append(far, b)
	}
	s.Enter(near[0])
	spoke := s.Enter(near[1])
	spoke()
	s.Enter(near[2])
	s.Enter(near[3])
	if !closed(near[0]) {
		t.Error("the oldest silent connection is open")
	}
	for _, i := range []int{1, 2, 3} {
		go func() { _, _ = far[i].Read(make([]byte, 1)) }()
		if closed(near[i]) {
			t.Errorf("connection %d is closed: it spoke, or others are older", i)
		}
	}
	spoke() // twice is fine
}
