package netloop

import (
	"container/list"
	"net"
	"sync"
)

// Silent bounds the connections that have not said anything yet. Each costs a file
// descriptor, and anybody who reaches the port can open them. When there is one
// too many the oldest is closed: a client that means it speaks at once, so those
// that have been silent the longest are the ones to go. Safe for concurrent use.
type Silent struct {
	max int

	mu    sync.Mutex
	conns list.List // guarded by mu: net.Conn, oldest first
}

// NewSilent bounds them to limit.
func NewSilent(limit int) *Silent { return &Silent{max: limit} }

// Enter notes a new connection; leave is called when it has spoken, or is gone.
func (s *Silent) Enter(conn net.Conn) (leave func()) {
	s.mu.Lock()
	e := s.conns.PushBack(conn)
	var oldest net.Conn
	if s.conns.Len() > s.max {
		oldest = s.conns.Remove(s.conns.Front()).(net.Conn)
	}
	s.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close() // its reader learns that
	}
	return func() {
		s.mu.Lock()
		s.conns.Remove(e) // nothing if it was the oldest
		s.mu.Unlock()
	}
}
