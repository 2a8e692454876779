// Package testkit waits for what something else brings about: another goroutine,
// process or server. Tests of all packages use it.
package testkit

import (
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
