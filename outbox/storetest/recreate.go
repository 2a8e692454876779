package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weirdb/weir/outbox"
)

// payloads is a sink that records payloads.
type payloads struct {
	mu  sync.Mutex
	all []string
}

func (p *payloads) Publish(_ context.Context, msgs []outbox.Message) []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range msgs {
		p.all = append(p.all, string(msgs[i].Payload))
	}
	return nil
}

func (p *payloads) Close() error { return nil }

func (p *payloads) has(last string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.all, last)
}

// tableRecreated drops and recreates the tables while a relay runs. Their numbers start again, below
// those that the relay has seen, and a tail must follow the new table. The sweep, which would
// find the rows in the end, never runs.
func tableRecreated(s *suite) {
	claims := []outbox.ClaimMode{outbox.Poll}
	if s.Tail {
		claims = append(claims, outbox.Log)
	}
	for _, claim := range claims {
		store, sink := s.migrated(outbox.Plan{}), &payloads{}
		relay, err := outbox.NewRelay(store, sink, outbox.Config{Claim: claim, SweepEvery: 24 * time.Hour})
		s.check(err)
		ctx, stop := context.WithCancel(s.Context())
		ended := make(chan error, 1)
		go func() { ended <- relay.Run(ctx) }()
		for round := range 3 {
			if round > 0 {
				for _, suffix := range []string{"", outbox.ScheduledSuffix, "_parked", "_dead", "_lease", "_meta"} {
					s.exec("DROP TABLE " + s.Quote(outbox.DefaultTable+suffix))
				}
				_ = s.migrated(outbox.Plan{})
			}
			if claim == outbox.Log {
				s.eventually("the log is followed", func() bool { return relay.Stats().Tailing == 1 })
			}
			for n := range 20 - 5*round {
				last := fmt.Sprintf("%v %d %d", claim, round, n)
				s.enqueue(outbox.Message{Topic: "t", Key: "k", Payload: []byte(last)})
				if n%7 == 0 {
					s.eventually("it is delivered: "+last, func() bool { return sink.has(last) })
				}
			}
			s.eventually("all are noted", func() bool { return s.count(outbox.DefaultTable) == 0 })
		}
		stop()
		s.check(<-ended)
		if stats := relay.Stats(); stats.Stray != 0 || !slices.IsSorted(order(sink.all)) || len(sink.all) != 45 {
			s.Errorf("%v: delivered %v, %d of them by the sweep", claim, sink.all, stats.Stray)
		}
	}
}

// order converts payloads of tableRecreated to comparable numbers.
func order(payloads []string) []int {
	out := make([]int, len(payloads))
	for i, p := range payloads {
		var claim string
		var round, n int
		if _, err := fmt.Sscan(p, &claim, &round, &n); err != nil {
			return []int{1, 0}
		}
		out[i] = 100*round + n
	}
	return out
}

// eventually waits for a condition.
func (s *suite) eventually(what string, f func() bool) {
	s.Helper()
	pause := time.Millisecond
	for deadline := time.Now().Add(patience); !f(); time.Sleep(pause) {
		if time.Now().After(deadline) {
			s.Fatal("never:", what)
		}
		pause = min(pause*3/2, 20*time.Millisecond)
	}
}
