package labtest

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/weirdb/weir/internal/lab"
)

// Relays put each connection to a server behind a relay of its own.
type Relays struct {
	TB   testing.TB
	mu   sync.Mutex
	list []*lab.Relay // guarded by mu
}

// Dial connects to a server through a new relay, as net.Dialer's DialContext does.
func (r *Relays) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	relay := Relay(r.TB, address)
	r.mu.Lock()
	r.list = append(r.list, relay)
	r.mu.Unlock()
	return new(net.Dialer).DialContext(ctx, network, relay.Addr())
}

// Used returns the relay that carries what do asks the server. It calls do 300 times:
// weir's own questions on other connections are not to outweigh it.
func (r *Relays) Used(do func()) (most *lab.Relay) {
	r.TB.Helper()
	r.mu.Lock()
	list := append([]*lab.Relay(nil), r.list...)
	r.mu.Unlock()
	before := make([]int64, len(list))
	for i, relay := range list {
		before[i] = relay.Bytes(lab.ToServer)
	}
	for range 300 {
		do()
	}
	var n int64
	for i, relay := range list {
		if d := relay.Bytes(lab.ToServer) - before[i]; d > n {
			most, n = relay, d
		}
	}
	if most == nil {
		r.TB.Fatal("nothing went to the server")
	}
	return most
}
