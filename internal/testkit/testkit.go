// Package testkit helps tests: it waits for conditions that another goroutine, process or
// server brings about, and selects the tests and rounds to run.
package testkit

import (
	"os"
	"testing"
	"time"
)

// Patience limits every wait. It is long enough for slow machines: only a bug reaches it.
const Patience = 2 * time.Minute

// Eventually returns when a condition holds, and fails tb if it does not within Patience. It
// checks at once and then less and less often, to leave the processor to others.
func Eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	Await(tb, holds, func() string { return what })
}

// Await is Eventually for a condition that can describe the current state.
func Await(tb testing.TB, holds func() bool, state func() string) {
	tb.Helper()
	await(tb, Patience, holds, state)
}

// Receive returns what is sent on c, or the zero value once c is closed. It fails tb if that takes
// longer than Patience; what is what tb waits for.
func Receive[T any](tb testing.TB, what string, c <-chan T) (v T) {
	tb.Helper()
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case v = <-c:
	case <-timer.C:
		tb.Fatalf("not within %s: %s", Patience, what)
	}
	return v
}

// Alone skips a single-threaded test under the race detector, which cannot find anything there
// and makes it ten times as slow: make test runs its package without the race detector.
func Alone(tb testing.TB) {
	tb.Helper()
	if raceEnabled {
		tb.Skip("it computes in one thread: make test runs it without the race detector")
	}
}

// Long skips a test that takes seconds of CPU time under go test -short, which `make test`
// uses; why says what takes them. `make test-all` and plain go test run it. Cheaper tests,
// which always run, should cover the same guarantee.
func Long(tb testing.TB, why string) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("long, for make test-all: " + why)
	}
}

// envTorture, if set to 1, makes tests run all their rounds: see Rounds.
const envTorture = "WEIR_TORTURE"

// Rounds returns how many rounds of a repeatable test to run: few, or all with WEIR_TORTURE=1,
// as `make torture` sets it. What is asserted must not depend on it.
func Rounds(few, all int) int {
	if All() {
		return all
	}
	return few
}

// All reports whether all rounds are run.
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
