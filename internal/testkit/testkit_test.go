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
	for name, wait := range map[string]func(testing.TB){
		"Await": func(tb testing.TB) {
			Await(tb, func() bool { return false }, func() string { return "nothing has come" })
		},
		"Receive": func(tb testing.TB) { Receive(tb, "nothing has come", make(chan int)) },
	} {
		synctest.Test(t, func(t *testing.T) {
			begin, w := time.Now(), &witness{TB: t}
			func() {
				defer func() {
					if r := recover(); r != w {
						panic(r)
					}
				}()
				wait(w)
			}()
			if want := "not within 2m0s: nothing has come"; w.said != want {
				t.Errorf("%s said %q, want %q", name, w.said, want)
			}
			if took := time.Since(begin); took < Patience {
				t.Errorf("%s gave up after %s", name, took)
			}
		})
	}
}

func TestReceive(t *testing.T) {
	c := make(chan int, 1)
	c <- 7
	if v := Receive(t, "seven", c); v != 7 {
		t.Errorf("received %d, want 7", v)
	}
	close(c)
	if v := Receive(t, "the end", c); v != 0 {
		t.Errorf("received %d of a closed channel", v)
	}
}

func TestRoundsAreAllUnderTorture(t *testing.T) {
	for value, want := range map[string]int{"": 3, "0": 3, "1": 50} {
		t.Setenv(envTorture, value)
		if got := Rounds(3, 50); got != want {
			t.Errorf("with %s=%q: %d rounds, want %d", envTorture, value, got, want)
		}
	}
}
