package measure

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestSleeperIsNeverEarly(t *testing.T) {
	done := make(chan struct{})
	go func() { // of its own, since its thread ends with it
		defer close(done)
		s, clock := NewSleeper(), NewClock()
		for _, d := range []time.Duration{0, time.Microsecond, 300 * time.Microsecond, 4 * time.Millisecond, 0} {
			until := clock.Now() + int64(d)
			if err := s.Until(t.Context(), clock, until); err != nil {
				t.Errorf("until %v: %v", d, err)
			}
			if now := clock.Now(); now < until {
				t.Errorf("until %v: woke %d ns early", d, until-now)
			}
		}
	}()
	<-done
}

func TestSleeperStopsWithItsContext(t *testing.T) {
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	got := make(chan error)
	go func() {
		s, clock := NewSleeper(), NewClock()
		got <- s.Until(ctx, clock, int64(time.Hour))
	}()
	cancel(enough)
	if err := <-got; !errors.Is(err, enough) {
		t.Errorf("error = %v", err)
	}
}
