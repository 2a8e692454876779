package consensus

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// answersOf lists the requests that effects answer, and how many bytes that takes.
func answersOf(e Effects) (requests []uint64, bytes int) {
	for _, s := range e.Sends {
		if s.Message.Kind == wire.ReadDone && s.To >= FirstClient {
			requests, bytes = append(requests, s.Message.Request), bytes+len(s.Message.Data)
		}
	}
	return requests, bytes
}

// Clients that ask for more than can be sent at once must not block messages to other replicas,
// nor clients that ask for little.
func TestLargeAnswersTakeTurns(t *testing.T) {
	const size, asked = 1 << 20, 300
	for _, kind := range []wire.Kind{wire.Read, wire.WeakRead} {
		t.Run(kind.String(), func(t *testing.T) {
			r := newRig(t, 3, "raft-ht")
			lead := r.leader()
			c := r.nodes[lead].core
			ask := func(client Addr, request uint64, key string) {
				m := wire.Message{Kind: kind, Request: request, Data: []byte("get " + key)}
				c.Deliver(r.now, client, &m)
			}
			r.tick(6) // the lease
			words := r.nodes[lead].words
			words.m["large"], words.m["small"] = strings.Repeat("x", size), "s"
			for i := range asked {
				ask(FirstClient+1, uint64(i+1), "large")
			}
			ask(FirstClient+2, 7, "small")
			told := map[uint64]int{}
			small := 0
			for turn := 1; len(told) < asked; turn++ {
				if turn > asked {
					t.Fatalf("%d of %d are answered", len(told), asked)
				}
				if turn == 2 { // they become impatient
					for i := range asked {
						if told[uint64(i+1)] == 0 {
							ask(FirstClient+1, uint64(i+1), "large")
						}
					}
				}
				e := c.Take(r.now)
				for _, s := range e.Sends {
					if s.To == FirstClient+2 && s.Message.Kind == wire.ReadDone {
						small = turn
					}
				}
				requests, bytes := answersOf(e)
				if bytes > maxAnswerBytes+size {
					t.Fatalf("turn %d: answers of %d bytes", turn, bytes)
				}
				for _, q := range requests {
					told[q]++
				}
			}
			if small != 1 {
				t.Errorf("who asks for little is answered in turn %d", small)
			}
			for i := range asked {
				if n := told[uint64(i+1)]; n == 0 || kind == wire.Read && n > 1 && i+1 != 7 {
					t.Errorf("request %d is answered %d times", i+1, n)
				}
			}
			if _, again := answersOf(c.Take(r.now)); again != 0 && kind == wire.Read {
				t.Errorf("%d bytes more", again)
			}
			if len(c.out.large) != 0 && kind == wire.Read || c.lead != nil && len(c.lead.waits) != 0 {
				t.Errorf("remembered for ever: %d, %d", len(c.out.large), len(c.lead.waits))
			}
		})
	}
}

// A query is answered again when it is asked again after its answer, which may have
// been lost.
func TestQueriesMayBeAskedAgain(t *testing.T) {
	r := newRig(t, 3, "raft")
	c := r.nodes[r.leader()].core
	r.tick(6)
	for i := range 3 {
		for _, request := range []uint64{5, 6, 5} {
			c.Deliver(r.now, FirstClient+1, &wire.Message{Kind: wire.Read, Request: request, Data: []byte("get a")})
		}
		got, _ := answersOf(c.Take(r.now))
		if fmt.Sprint(got) != "[5 6 5]" {
			t.Fatalf("round %d: answers to %v", i, got)
		}
	}
}
