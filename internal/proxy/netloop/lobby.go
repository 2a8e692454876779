package netloop

import (
	"container/list"
	"io"
	"math"
	"sync"

	"golang.org/x/sys/unix"
)

// A Lobby holds the connections of clients that have not said who they are. It has a limit
// of its own, so that connections that send nothing take neither other clients' places nor
// all descriptors: when it is full, the oldest one has to leave. A client that logs in is in
// the lobby for one round trip. Safe for concurrent use; the zero value is empty.
type Lobby struct {
	mu    sync.Mutex
	conns list.List // guarded by mu: of io.Closer, the oldest first
	limit int       // guarded by mu: 0 until it is known
}

// maxLobby is the maximum of connections in a lobby; if the process may open few
// descriptors, it is a quarter of those.
const maxLobby = 1024

// Enter adds a connection, and closes the oldest one if there is no room. The
// caller calls leave when the client has said who it is, or has left.
func (b *Lobby) Enter(conn io.Closer) (leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limit == 0 {
		b.limit = lobbyLimit()
	}
	if b.conns.Len() >= b.limit {
		_ = b.conns.Remove(b.conns.Front()).(io.Closer).Close()
	}
	e := b.conns.PushBack(conn)
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.conns.Remove(e) // no effect if it has left
	}
}

// Len is the number of connections in the lobby.
func (b *Lobby) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.conns.Len()
}

func lobbyLimit() int {
	files, ok := MaxFiles()
	if !ok {
		return maxLobby
	}
	return max(min(files/4, maxLobby), 16)
}

// MaxFiles is how many descriptors the process may have; ok is false if that is
// unknown.
func MaxFiles() (n int, ok bool) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, false
	}
	return int(min(r.Cur, math.MaxInt32)), true
}
