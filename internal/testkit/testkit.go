// Package testkit waits in tests for what another goroutine, process or server brings
// about.
package testkit

import (
	"os"
	"testing"
	"time"
)

// Patience bounds every wait. Only a defect reaches it, however slow the machine is.
const Patience = 2 * time.Minute

// Eventually returns when a condition holds, and fails tb when it does not within
// Patience. It is asked at once and then less and less often, so that those who
// wait leave the processor to those whom they wait for.
func Eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	Await(tb, holds, func() string { return what })
}

// Await is Eventually for a condition that can say what is instead.
func Await(tb testing.TB, holds func() bool, state func() string) {
	tb.Helper()
	await(tb, Patience, holds, state)
}

// Alone skips a test that computes in one thread, in which the race detector has nothing
// to find and takes ten times as long: its package is one of those that make test tests
// without.
func Alone(tb testing.TB) {
	tb.Helper()
	if raceEnabled {
		tb.Skip("it computes in one thread: make test runs it without the race detector")
	}
}

// Long skips a test that takes seconds of processors where go test is told -short, as
// `make test` tells it; why is what takes them. `make test-all` and a plain go test play it.
// Cheaper tests should guard the same promise: they are always played.
func Long(tb testing.TB, why string) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("long, for make test-all: " + why)
	}
}

// envTorture, when it is 1, has tests play all their rounds: see Rounds.
const envTorture = "WEIR_TORTURE"

// Rounds returns how many rounds a test plays of what it could repeat for ever: few of
// them, or all with WEIR_TORTURE=1, as `make torture` sets it. What is asserted must not
// depend on it.
func Rounds(few, all int) int {
	if All() {
		return all
	}
	return few
}

// All reports whether all rounds are played.
func All() bool { return os.Getenv(envTorture) == "1" }

func await(tb testing.TB, patience time.Duration, holds func() bool, state func() string) {
	tb.Helper()
	end := time.Now().Add(patience)
	for pause := time.Millisecond; !holds(); pause = min(pause*3/2, 20*time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("not within %s: %s", patience, state())
		}
		time.Sleep(pause)
	}
}
