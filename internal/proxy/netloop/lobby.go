package netloop

import (
	"container/list"
	"io"
	"math"
	"sync"

	"golang.org/x/sys/unix"
)

// A Lobby holds the connections of clients that have not said who they are. They
// are bounded by themselves, so that those who connect and say nothing take no
// client's place, nor all descriptors: when it is full, anyone who has been there for
// longest has to leave. A client that means to log in is there for a round trip.
// Safe for concurrent use; the zero value is empty.
type Lobby struct {
	mu    sync.Mutex
	conns list.List // guarded by mu: of io.Closer, the oldest first
	limit int       // guarded by mu: 0 until it is known
}

// maxLobby is the most connections in a lobby. Where the process may have few
// descriptors it is a quarter of those.
const maxLobby = 1024

// Enter takes a connection in, and closes the oldest one if there is no room. The
// caller calls leave when the client has said who it is, or has gone.
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
		b.conns.Remove(e) // which does nothing if it has left
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

// MaxFiles is how many descriptors the process may have; ok is false where that is not
// known.
func MaxFiles() (n int, ok bool) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, false
	}
	return int(min(r.Cur, math.MaxInt32)), true
}
