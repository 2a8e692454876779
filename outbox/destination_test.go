package outbox

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// Each destination has its own counts, and its lag is the age of what fails there.
func TestStatsByDestination(t *testing.T) {
	for _, mode := range []ClaimMode{Poll, SkipLocked} {
		synctest.Test(t, func(t *testing.T) {
			store, sink := newMemStore(), &memSink{}
			mended := false
			sink.decide = func(m *Message) error {
				switch {
				case m.Topic == "huge":
					return Invalid(errors.New("too large"))
				case m.Topic != "fine" && !mended:
					return errors.New("no")
				}
				return nil
			}
			for _, topic := range []string{"fine", "fine", "huge", "lame", "down", "down", "down"} {
				store.put(Message{Topic: topic, Payload: []byte("1234")})
			}
			cfg := fast()
			cfg.Claim, cfg.Retry.MaxAttempts = mode, 1000
			r, stop := running(t, store, sink, cfg)
			time.Sleep(5 * time.Minute)
			got := byName(r)
			if len(got) != 4 {
				t.Fatalf("%v: destinations %+v", mode, got)
			}
			now := time.Now()
			if d := got["fine"]; d.Delivered != 2 || d.Bytes != 8 || d.Failed != 0 || d.Failing != 0 || d.Lag(now) > time.Minute || d.LastError != "" {
				t.Errorf("%v: fine: %+v", mode, d)
			}
			if d := got["huge"]; d.Delivered != 0 || d.Buried != 1 || d.Failed != 1 || d.Failing != 0 || d.LastError != "too large" {
				t.Errorf("%v: huge: %+v", mode, d)
			}
			if d := got["lame"]; d.Failing != 1 || d.Failed < 2 || d.Blocked || d.Lag(now) < 4*time.Minute || d.LastError != "no" {
				t.Errorf("%v: lame: %+v", mode, d)
			}
			if d := got["down"]; d.Failing != 3 || !d.Blocked || d.Lag(now) < 4*time.Minute {
				t.Errorf("%v: down: %+v", mode, d)
			}
			mended = true
			until(t, "all are taken", func() bool { return store.pending() == 0 })
			for _, name := range []string{"lame", "down"} {
				if d := byName(r)[name]; d.Delivered == 0 || d.Failing != 0 || d.Blocked || !d.Oldest.IsZero() || d.LastError != "" || d.Delay < 5*time.Minute {
					t.Errorf("%v: %s, mended: %+v", mode, name, d)
				}
			}
			stop()
		})
	}
}

func byName(r *Relay) map[string]DestinationStats {
	out := map[string]DestinationStats{}
	for _, d := range r.Stats().Destinations {
		out[d.Name] = d
	}
	return out
}

// A topic for each customer makes no row for each: the rest is counted together.
func TestStatsOfManyDestinations(t *testing.T) {
	var d destinations
	topic := func(m *Message) string { return m.Topic }
	now := time.Now()
	for i := range 3 * mostDestinations {
		d.took([]Row{{Message: Message{Topic: fmt.Sprintf("t%03d", i)}}}, topic, now)
	}
	for seq := range 3 * mostFailing {
		d.failed("t000", &Row{Seq: int64(seq), CreatedAt: now}, time.Second, errors.New("no"), now)
	}
	all := d.stats(func(string) bool { return false }, now)
	if len(all) != mostDestinations+1 || all[0].Name != "t000" || all[0].Failing != mostFailing || all[0].Failed != 3*mostFailing {
		t.Errorf("%d destinations, the first %+v", len(all), all[0])
	}
	if rest := all[len(all)-1]; rest.Name != "" || rest.Delivered != 2*mostDestinations {
		t.Errorf("the rest: %+v", rest)
	}
	if later := d.stats(func(string) bool { return false }, now.Add(time.Hour)); later[0].Failing != 0 {
		t.Errorf("an hour later somebody else has delivered it: %+v", later[0])
	}
	d.failed("t001", &Row{Seq: 1, CreatedAt: now}, time.Hour, errors.New("no"), now)
	d.forget()
	if after := d.stats(func(string) bool { return false }, now); after[1].Failing != 0 || after[1].Failed != 1 {
		t.Errorf("after the leadership: %+v", after[1])
	}
}
