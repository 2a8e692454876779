package labtest

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/weirdb/weir/internal/lab"
)

// Relays put each connection to a server behind its own relay.
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

// Used returns the relay that carries the traffic which do causes, or most of it. It calls do
// at least 300 times: weir's own queries use other connections now and then, but not after
// every few calls.
func (r *Relays) Used(do func()) *lab.Relay {
	r.TB.Helper()
	const tries, bursts, calls = 5, 30, 10
	type use struct{ bursts, bytes int64 }
	for range tries {
		uses := make(map[*lab.Relay]use)
		for range bursts {
			before := make(map[*lab.Relay]int64)
			for _, relay := range r.all() {
				before[relay] = relay.Bytes(lab.ToServer)
			}
			for range calls {
				do()
			}
			for _, relay := range r.all() {
				if n := relay.Bytes(lab.ToServer) - before[relay]; n > 0 {
					u := uses[relay]
					uses[relay] = use{u.bursts + 1, u.bytes + n}
				}
			}
		}
		var most *lab.Relay
		for relay, u := range uses {
			if v := uses[most]; u.bursts > v.bursts || u.bursts == v.bursts && u.bytes > v.bytes {
				most = relay
			}
		}
		if uses[most].bursts > bursts/2 {
			return most
		}
	}
	r.TB.Fatal("no connection carried most of what was asked")
	return nil
}

func (r *Relays) all() []*lab.Relay {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*lab.Relay(nil), r.list...)
}
