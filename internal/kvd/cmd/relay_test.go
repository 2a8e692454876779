package kvcmd

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/weirdb/weir/internal/lab"
)

// relayedPeers puts a relay between each pair of replicas.
type relayedPeers struct {
	t  *testing.T
	mu sync.Mutex
	by map[[3]string]*lab.Relay // from, to: the replicas' ids, and to which address
}

// between changes the peers that a replica is told of; see lab.KVConfig.Each.
func (p *relayedPeers) between(number int, flags map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := fmt.Sprint(number)
	var peers []string
	for peer := range strings.SplitSeq(flags["peers"], ",") {
		id, where, _ := strings.Cut(peer, "=")
		addr, redis, _ := strings.Cut(where, "/")
		if id != own {
			addr = p.relay([3]string{own, id, addr}, addr)
		}
		peers = append(peers, id+"="+addr+"/"+redis)
	}
	flags["peers"] = strings.Join(peers, ",")
}

func (p *relayedPeers) relay(ends [3]string, addr string) string {
	if p.by == nil {
		p.by = map[[3]string]*lab.Relay{}
	}
	if p.by[ends] == nil {
		relay, err := lab.StartRelay(addr)
		if err != nil {
			p.t.Errorf("relay to %s: %v", addr, err)
			return addr
		}
		p.t.Cleanup(func() {
			if err := relay.Close(); err != nil {
				p.t.Error(err)
			}
		})
		p.by[ends] = relay
	}
	return p.by[ends].Addr()
}

// cut separates a replica from the others.
func (p *relayedPeers) cut(id int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ends, relay := range p.by {
		if ends[0] == fmt.Sprint(id) || ends[1] == fmt.Sprint(id) {
			relay.Stall()
		}
	}
}

// heal delivers what was held back, and everything from now on.
func (p *relayedPeers) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, relay := range p.by {
		relay.Heal()
	}
}
