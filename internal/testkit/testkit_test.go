package testkit

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// witness is a test that notes how it failed.
type witness struct {
	testing.TB
	said string
}

func (w *witness) Helper() {}

// Fatalf ends the wait as the end of a test's goroutine would.
func (w *witness) Fatalf(format string, args ...any) {
	w.said = fmt.Sprintf(format, args...)
	panic(w)
}

func TestConditionsAreAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		asked := 0
		Eventually(t, "a second has passed", func() bool {
			asked++
			return time.Since(begin) >= time.Second
		})
		if took := time.Since(begin); took > time.Second+20*time.Millisecond {
			t.Errorf("a condition that held after a second was seen after %s", took)
		}
		if asked > 80 {
			t.Errorf("it was asked for %d times in a second", asked)
		}
	})
}

func TestWaitsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, w := time.Now(), &witness{TB: t}
		func() {
			defer func() {
				if r := recover(); r != w {
					panic(r)
				}
			}()
			Await(w, func() bool { return false }, func() string { return "nothing has come" })
		}()
		if want := "not within 2m0s: nothing has come"; w.said != want {
			t.Errorf("it said %q, want %q", w.said, want)
		}
		if took := time.Since(begin); took < Patience {
			t.Errorf("it gave up after %s", took)
		}
	})
}

func TestRoundsAreAllUnderTorture(t *testing.T) {
	for value, want := range map[string]int{"": 3, "0": 3, "1": 50} {
		t.Setenv(envTorture, value)
		if got := Rounds(3, 50); got != want {
			t.Errorf("with %s=%q: %d rounds, want %d", envTorture, value, got, want)
		}
	}
}
