package outboxload

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench/subject/messages"
)

// memory is an outbox in memory whose relay can be made to misbehave.
type memory struct {
	// fault sees the n-th message that is taken, from 0, and says how often it is
	// delivered, and whether after the next one.
	fault func(n int) (times int, late bool)
	// ends, if not nil, ends the relay when it is let go.
	ends error

	mu      sync.Mutex
	rows    [][]byte
	taken   int
	arrived chan struct{} // one token: look
}

func newMemory() *memory { return &memory{arrived: make(chan struct{}, 1)} }

func (m *memory) Reset(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rows, m.taken = nil, 0
	return nil
}

func (m *memory) Seed(_ context.Context, msgs []Message) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, msg := range msgs {
		m.rows = append(m.rows, msg.Payload)
	}
	m.look()
	return nil
}

func (m *memory) look() {
	select {
	case m.arrived <- struct{}{}:
	default:
	}
}

func (m *memory) Enqueue(ctx context.Context, msg Message) error { return m.Seed(ctx, []Message{msg}) }

func (m *memory) Pending(context.Context) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return int64(len(m.rows)), nil
}

func (*memory) Settings() map[string]string { return map[string]string{"outbox": "memory"} }

func (m *memory) Relay(deliver func([][]byte)) (Relay, error) {
	r := &memoryRelay{memory: m, deliver: deliver}
	r.open = sync.NewCond(&r.gate)
	return r, nil
}

// memoryRelay delivers what lies in memory.
type memoryRelay struct {
	*memory
	deliver func([][]byte)
	gate    sync.Mutex
	open    *sync.Cond
	paused  bool
	acked   int64
}

func (r *memoryRelay) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, r.open.Broadcast)()
	for {
		r.gate.Lock()
		for r.paused && ctx.Err() == nil {
			r.open.Wait()
		}
		n := r.pass()
		r.gate.Unlock()
		if r.ends != nil && n > 0 {
			return r.ends
		}
		select {
		case <-r.arrived:
		case <-ctx.Done():
			return nil
		}
	}
}

// pass takes all rows and delivers them.
func (r *memoryRelay) pass() int {
	r.mu.Lock()
	rows, from := r.rows, r.taken
	r.rows, r.taken = nil, r.taken+len(r.rows)
	r.mu.Unlock()
	var late [][]byte
	for i, row := range rows {
		times, after := 1, false
		if r.fault != nil {
			times, after = r.fault(from + i)
		}
		if after {
			late = append(late, row)
			continue
		}
		for range times {
			r.deliver([][]byte{row})
		}
	}
	r.deliver(late)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acked += int64(len(rows))
	return len(rows)
}

func (*memoryRelay) Ready(context.Context) error { return nil }

func (r *memoryRelay) Pause(context.Context) error {
	r.gate.Lock()
	defer r.gate.Unlock()
	r.paused = true
	return nil
}

func (r *memoryRelay) Resume(context.Context) error {
	r.gate.Lock()
	defer r.gate.Unlock()
	r.paused = false
	r.look()
	r.open.Broadcast()
	return nil
}

func (r *memoryRelay) Acked() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.acked
}

// faults are relays that a ledger must find, and what it must say of them.
var faults = []fault{
	{"honest", nil, ""},
	{"losing one in a hundred", func(n int) (int, bool) { return min(1, (n+1)%100), false }, "were lost"},
	{"losing the last", func(n int) (int, bool) { return map[bool]int{true: 0, false: 1}[n == 399], false }, "1 of 400 committed messages were lost"},
	{"one in fifty late", func(n int) (int, bool) { return 1, n%50 == 3 }, "after a later one of their key"},
}

type fault struct {
	name  string
	fault func(n int) (int, bool)
	want  string
}

// patience is how long the next message is waited for: where one is lost that
// wait is in vain, where none is a busy machine has all the time that it needs.
func (f fault) patience() time.Duration {
	if strings.Contains(f.want, "lost") {
		return 50 * time.Millisecond
	}
	return time.Minute
}

func TestConsumeFindsFaultsOfRelays(t *testing.T) {
	for _, tc := range faults {
		t.Run(tc.name, func(t *testing.T) {
			m := newMemory()
			m.fault = tc.fault
			out, err := Consume(t.Context(), m, ConsumeConfig{Records: 400, Payload: 64, Keys: 8, Patience: tc.patience()})
			if err != nil {
				t.Fatal(err)
			}
			broken := strings.Join(messages.Of(out.Sample.Parts).Ledger.Broken(true), "; ")
			if (tc.want == "") != (broken == "") || !strings.Contains(broken, tc.want) {
				t.Errorf("held against it: %q, want %q", broken, tc.want)
			}
			if got := messages.Of(out.Sample.Parts).Ledger; got.Handed != 400 || got.Committed != 400 {
				t.Errorf("ledger %+v", got)
			}
			if tc.want == "" && (out.Sample.Ops != 400 || messages.Of(out.Sample.Parts).AckedSeconds < out.Sample.Seconds || out.Sample.Seconds <= 0) {
				t.Errorf("%d delivered in %g s, acknowledged after %g s", out.Sample.Ops, out.Sample.Seconds, messages.Of(out.Sample.Parts).AckedSeconds)
			}
		})
	}
}

func TestConsumeCountsRepetitions(t *testing.T) {
	m := newMemory()
	m.fault = func(n int) (int, bool) { return 1 + min(1, n%2), false }
	out, err := Consume(t.Context(), m, ConsumeConfig{Records: 100, Payload: 64, Keys: 4, Patience: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if got := messages.Of(out.Sample.Parts).Ledger; got.Duplicates < 49 || len(got.Broken(true)) > 0 {
		t.Errorf("ledger %+v, broken %q", got, got.Broken(true))
	}
}

// Messages outside the target are not lost as long as they are in the table.
func TestConsumeWaitsForItsTargetOnly(t *testing.T) {
	m := newMemory()
	out, err := Consume(t.Context(), m, ConsumeConfig{
		Records: 100, Payload: 64, Patience: time.Minute,
		Seed: func(ctx context.Context, l *Ledger, clock measure.Clock) error {
			for i := range 100 {
				n := l.Hand(0)
				l.Committed(0, n, clock.Now())
				if i >= 40 {
					continue // as good as outside the window: it stays where it is
				}
				if err := m.Seed(ctx, []Message{payloads{Filler(64)}.message(0, n)}); err != nil {
					return err
				}
			}
			return nil
		},
		Target: func(context.Context) (int64, error) { return 40, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	got := messages.Of(out.Sample.Parts).Ledger
	if got.Delivered != 40 || got.Lost != 60 { // memory has nothing left, so the rest is lost
		t.Errorf("ledger %+v", got)
	}
	if out.Sample.Ops != 40 {
		t.Errorf("%d operations", out.Sample.Ops)
	}
}

func TestConsumeEndsWithItsRelay(t *testing.T) {
	m := newMemory()
	m.ends = errors.New("no more")
	m.fault = func(int) (int, bool) { return 0, false }
	_, err := Consume(t.Context(), m, ConsumeConfig{Records: 10, Payload: 64, Patience: time.Minute})
	if !errors.Is(err, m.ends) {
		t.Errorf("error %v", err)
	}
}

// produce enqueues for longer and longer, until the time has sufficed for what
// seen looks for: a machine that is busy may get nothing done in a short one.
func produce(t *testing.T, s Subject, c ProduceConfig, seen func(*Outcome) bool) *Outcome {
	t.Helper()
	for {
		out, err := Produce(t.Context(), s, c)
		if err != nil {
			t.Fatal(err)
		}
		if seen(out) {
			return out
		}
		if c.Duration *= 4; c.Duration > time.Minute {
			t.Fatalf("nothing has happened in %v: %+v", c.Duration/4, out.Sample)
		}
	}
}

func TestProduceFindsFaultsOfRelays(t *testing.T) {
	for _, tc := range faults {
		if tc.name == "losing the last" || strings.Contains(tc.name, "late") {
			continue // which one is the last is not known, and those that come one by one pass nobody
		}
		t.Run(tc.name, func(t *testing.T) {
			m := newMemory()
			m.fault = tc.fault
			out := produce(t, m, ProduceConfig{
				Producers: 2, Relay: true, Payload: 64, Rate: 2000, Duration: 200 * time.Millisecond, Drain: tc.patience(),
			}, func(out *Outcome) bool {
				return out.Sample.Rates["enqueue"] > 0 && out.Sample.Rates["consume"] > 0 && messages.Of(out.Sample.Parts).Ledger.Committed >= 100
			})
			s := &out.Sample
			broken := strings.Join(messages.Of(s.Parts).Ledger.Broken(true), "; ")
			if lost := strings.Contains(tc.name, "losing"); lost != strings.Contains(broken, "lost") {
				t.Errorf("held against it: %q; ledger %+v", broken, messages.Of(s.Parts).Ledger)
			}
			if messages.Of(s.Parts).FromCommit.Count() == 0 || messages.Of(s.Parts).FromStart.Count() == 0 || len(messages.Of(s.Parts).Lag) != lagSteps {
				t.Errorf("%d delivery times, %d points of lag", messages.Of(s.Parts).FromCommit.Count(), len(messages.Of(s.Parts).Lag))
			}
		})
	}
}

func TestProduceAloneLooksIntoTheTable(t *testing.T) {
	out := produce(t, newMemory(), ProduceConfig{Producers: 2, Payload: 64, Duration: 50 * time.Millisecond, Rate: 1000},
		func(out *Outcome) bool { return messages.Of(out.Sample.Parts).Ledger.Committed > 0 })
	got := messages.Of(out.Sample.Parts).Ledger
	if got.Pending != got.Committed || got.Lost != 0 {
		t.Errorf("ledger %+v", got)
	}
	if messages.Of(out.Sample.Parts).FromCommit != nil || out.Sample.Rates["consume"] != 0 {
		t.Errorf("a relay that was not there delivered: %+v", out.Sample.Rates)
	}
}

// refusing commits no message.
type refusing struct{ *memory }

func (refusing) Enqueue(context.Context, Message) error { return errors.New("no") }

func TestProduceCountsWhatFailsAsUnknown(t *testing.T) {
	out := produce(t, refusing{newMemory()}, ProduceConfig{
		Producers: 1, Payload: 64, Duration: 50 * time.Millisecond, Rate: 500, Classify: func(error) string { return "refused" },
	}, func(out *Outcome) bool {
		return messages.Of(out.Sample.Parts).Ledger.Unknown > 0 && out.Sample.Errors["refused"] > 0
	})
	got := messages.Of(out.Sample.Parts).Ledger
	if got.Committed != 0 || got.Lost != 0 {
		t.Errorf("ledger %+v, errors %v", got, out.Sample.Errors)
	}
}

func TestJobsNameTheirRun(t *testing.T) {
	if _, err := (Job{Payload: 64}).Run(t.Context(), newMemory()); err == nil {
		t.Error("a job with nothing to do is done")
	}
	out, err := Job{Payload: 64, Records: 50, Patience: time.Minute}.Run(t.Context(), newMemory())
	if err != nil || out.Sample.Ops != 50 {
		t.Errorf("outcome %+v, %v", out, err)
	}
}
