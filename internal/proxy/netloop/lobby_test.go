package netloop

import (
	"net"
	"testing"
)

// A client that arrives when the lobby is full takes the place of the oldest.
func TestLobbyIsBounded(t *testing.T) {
	b := Lobby{limit: 2}
	far := make([]net.Conn, 3)
	leave := make([]func(), 3)
	for i := range far {
		var near net.Conn
		near, far[i] = net.Pipe()
		t.Cleanup(func() { _ = near.Close() })
		leave[i] = b.Enter(near)
	}
	if _, err := far[0].Read(make([]byte, 1)); err == nil {
		t.Error("the oldest is still there")
	}
	if n := b.Len(); n != 2 {
		t.Errorf("%d in the lobby, want 2", n)
	}
	for _, f := range leave {
		f()
		f()
	}
	if n := b.Len(); n != 0 {
		t.Errorf("%d in the lobby after all have left", n)
	}
}
