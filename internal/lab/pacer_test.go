package lab

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

func TestPacerNeverEarlyAndInOrder(t *testing.T) {
	t.Parallel()
	p, err := newPacer()
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	// While the pacer's thread is held, all are added: order is then defined.
	held, release := make(chan struct{}), make(chan struct{})
	p.at(time.Now(), func() { close(held); <-release })
	<-held
	const n = 500
	start := time.Now()
	var wg sync.WaitGroup
	var fired []time.Time // by the pacer's one thread
	wg.Add(n)
	for range n {
		at := start.Add(rand.N(20 * time.Millisecond))
		p.at(at, func() {
			if now := time.Now(); now.Before(at) {
				t.Errorf("fired %v early", at.Sub(now))
			}
			fired = append(fired, at)
			wg.Done()
		})
	}
	close(release)
	wg.Wait()
	if !slices.IsSortedFunc(fired, time.Time.Compare) {
		t.Error("fired out of order")
	}
}

func TestPacerEarlierEntryOvertakes(t *testing.T) {
	t.Parallel()
	p, err := newPacer()
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	p.at(time.Now().Add(time.Hour), func() { t.Error("fired an hour early") })
	fired := make(chan struct{})
	p.at(time.Now().Add(time.Millisecond), func() { close(fired) })
	<-fired // hangs if the first entry's sleep is not interrupted
}

func TestPacerEqualTimesKeepOrder(t *testing.T) {
	t.Parallel()
	p, err := newPacer()
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	held, release := make(chan struct{}), make(chan struct{})
	p.at(time.Now(), func() { close(held); <-release })
	<-held
	at := time.Now()
	var got []int
	done := make(chan struct{})
	for n := range 100 {
		p.at(at, func() {
			got = append(got, n)
			if n == 99 {
				close(done)
			}
		})
	}
	close(release)
	<-done
	if !slices.IsSorted(got) || len(got) != 100 {
		t.Errorf("fired in order %v", got)
	}
}

func TestPacerCloseForgets(t *testing.T) {
	t.Parallel()
	p, err := newPacer()
	if err != nil {
		t.Fatal(err)
	}
	p.at(time.Now().Add(time.Hour), func() { t.Error("fired after close") })
	p.close()
	p.close()
	p.at(time.Now(), func() { t.Error("fired after close") })
}

func TestWireStallAndGrant(t *testing.T) {
	t.Parallel()
	w := newWire()
	gone := make(chan struct{})
	if !w.pass(gone) {
		t.Error("an open wire does not pass")
	}
	w.stall()
	close(gone)
	if w.pass(gone) {
		t.Error("a stalled wire passes")
	}
	w.cutAfter(10)
	for _, tt := range []struct {
		n, pass int
		cut     bool
	}{{6, 6, false}, {3, 3, false}, {5, 1, true}, {5, 5, false}} {
		if pass, cut := w.grant(tt.n); pass != tt.pass || cut != tt.cut {
			t.Errorf("grant(%d) = %d, %v; want %d, %v", tt.n, pass, cut, tt.pass, tt.cut)
		}
	}
}

func TestWireArrival(t *testing.T) {
	t.Parallel()
	w := newWire()
	now := time.Unix(1000, 0)
	w.set(Link{Delay: time.Second, BytesPerSecond: 100})
	// 50 bytes leave for half a second; the next 100 queue behind them.
	if got, want := w.arrival(now, 50), now.Add(1500*time.Millisecond); !got.Equal(want) {
		t.Errorf("first arrives at %v, want %v", got, want)
	}
	if got, want := w.arrival(now, 100), now.Add(2500*time.Millisecond); !got.Equal(want) {
		t.Errorf("second arrives at %v, want %v", got, want)
	}
	// Idle time is not saved up.
	later := now.Add(time.Hour)
	if got, want := w.arrival(later, 100), later.Add(2*time.Second); !got.Equal(want) {
		t.Errorf("after a pause arrives at %v, want %v", got, want)
	}
	w.set(Link{})
	if got := w.arrival(now, 1<<20); !got.Equal(now) {
		t.Errorf("on a perfect wire arrives at %v, want at once", got)
	}
}
