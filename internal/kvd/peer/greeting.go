package peer

import (
	"net"
	"slices"
	"sync"
)

// greeting are the handshakes under way on connections that came in. There are so
// many at most; then the oldest gives way to a new one. A handshake takes a few round
// trips, so that the oldest ones are of strangers who say nothing, and these do not
// keep replicas and clients out. Safe for concurrent use.
type greeting struct {
	most int

	mu   sync.Mutex
	list []net.Conn // the oldest first
}

// begin notes a connection, and returns the one that has to give way, nil for none.
func (g *greeting) begin(nc net.Conn) (old net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.list) >= g.most {
		old = g.list[0]
		g.list = slices.Delete(g.list, 0, 1)
	}
	g.list = append(g.list, nc)
	return old
}

// end notes that a handshake has ended.
func (g *greeting) end(nc net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at := slices.Index(g.list, nc); at >= 0 {
		g.list = slices.Delete(g.list, at, at+1)
	}
}

func (g *greeting) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.list)
}
