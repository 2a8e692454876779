package outboxload

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/ruler/bench/subject/messages"
)

// story plays what happens to messages, written as words: h1 hands the next
// message of key 1 over, c1.0 commits its message 0, u1.0 leaves that unknown,
// d1.0 delivers it. Time goes on by 10 with each word.
func story(t *testing.T, text string) *Ledger {
	t.Helper()
	l := NewLedger(4)
	for i, w := range strings.Fields(text) {
		at := int64(10 * i)
		var key int
		var n int64
		if _, err := fmt.Sscanf(w[1:], "%d.%d", &key, &n); err != nil && w[0] != 'h' {
			t.Fatalf("%q: %v", w, err)
		}
		switch w[0] {
		case 'h':
			if _, err := fmt.Sscanf(w[1:], "%d", &key); err != nil {
				t.Fatalf("%q: %v", w, err)
			}
			l.Hand(key)
		case 'c':
			l.Committed(key, n, at)
			l.Timed(key, n, at-5)
		case 'u':
			l.Unknown(key, n)
		case 'd':
			l.Deliver((payloads{Filler(MinPayload)}).message(key, n).Payload, at)
		default:
			t.Fatalf("%q is no word of a story", w)
		}
	}
	return l
}

func TestLedgerKnowsWhatBecameOfMessages(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		left       int64
		want       messages.Ledger
		broken     string // with order promised
	}{
		{"all is well", "h0 c0.0 d0.0 h0 c0.1 d0.1", 0, messages.Ledger{Handed: 2, Committed: 2, Delivered: 2}, ""},
		{"lost", "h0 c0.0 h0 c0.1 d0.1", 0, messages.Ledger{Handed: 2, Committed: 2, Delivered: 1, Lost: 1}, "1 of 2 committed messages were lost"},
		{"the last one lost", "h0 c0.0 d0.0 h0 c0.1", 0, messages.Ledger{Handed: 2, Committed: 2, Delivered: 1, Lost: 1}, "1 of 2 committed messages were lost"},
		{"left by intention", "h0 c0.0 d0.0 h0 c0.1", 1, messages.Ledger{Handed: 2, Committed: 2, Delivered: 1, Pending: 1}, ""},
		{"more is left than is missing: not noted yet", "h0 c0.0 d0.0", 1, messages.Ledger{Handed: 1, Committed: 1, Delivered: 1, Pending: 1}, ""},
		{"lost beside what is left", "h0 c0.0 h0 c0.1 h0 c0.2", 2, messages.Ledger{Handed: 3, Committed: 3, Lost: 1, Pending: 2}, "1 of 3"},
		{"twice", "h0 c0.0 d0.0 d0.0", 0, messages.Ledger{Handed: 1, Committed: 1, Delivered: 1, Duplicates: 1}, ""},
		{"the earlier one again is no disorder", "h0 c0.0 d0.0 h0 c0.1 d0.1 d0.0", 0, messages.Ledger{Handed: 2, Committed: 2, Delivered: 2, Duplicates: 1}, ""},
		{"out of order", "h0 c0.0 h0 c0.1 d0.1 d0.0", 0, messages.Ledger{Handed: 2, Committed: 2, Delivered: 2, Disordered: 1}, "1 of 2 messages were delivered after a later one"},
		{"two keys have no order", "h0 c0.0 h1 c1.0 d1.0 d0.0", 0, messages.Ledger{Handed: 2, Committed: 2, Delivered: 2}, ""},
		{"delivered before its producer knew", "h0 d0.0 c0.0", 0, messages.Ledger{Handed: 1, Committed: 1, Delivered: 1}, ""},
		{"unknown and not there", "h0 u0.0", 0, messages.Ledger{Handed: 1, Unknown: 1}, ""},
		{"unknown and there", "h0 u0.0 d0.0", 0, messages.Ledger{Handed: 1, Unknown: 1, Delivered: 1}, ""},
		{"a number that was never given", "h0 c0.0 d0.0 d0.7", 0, messages.Ledger{Handed: 1, Committed: 1, Delivered: 1, Strangers: 1}, "1 messages were delivered that had never"},
		{"a key that there is not", "d9.0", 0, messages.Ledger{Strangers: 1}, "had never been enqueued"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := story(t, tc.text).Books(tc.left)
			if got != tc.want {
				t.Errorf("books %+v, want %+v", got, tc.want)
			}
			broken := strings.Join(got.Broken(true), "; ")
			if (tc.broken == "") != (broken == "") || !strings.Contains(broken, tc.broken) {
				t.Errorf("broken promises %q, want %q", broken, tc.broken)
			}
		})
	}
}

func TestDisorderIsNoFaultOfWhoPromisesNone(t *testing.T) {
	l := story(t, "h0 c0.0 h0 c0.1 d0.1 d0.0").Books(0)
	if b := l.Broken(false); len(b) > 0 {
		t.Errorf("held against it: %q", b)
	}
	lost := story(t, "h0 c0.0").Books(0)
	if b := lost.Broken(false); len(b) != 1 {
		t.Errorf("a loss is held against it as %q", b)
	}
}

func TestGarbageIsAStranger(t *testing.T) {
	l := NewLedger(1)
	l.Deliver([]byte("what is this"), 1)
	if b := l.Books(0); b.Strangers != 1 {
		t.Errorf("books %+v", b)
	}
}

func TestTimesCountFromStartAndCommit(t *testing.T) {
	// 0.0 is committed at 10, was due at 5 and delivered at 40; 0.1 is delivered at
	// 60 before its producer knows at 70.
	l := story(t, "h0 c0.0 h1 h1 d0.0 h0 d0.1 c0.1")
	got := l.times(0, 100)
	if got.fromCommit.Max() != 30 || got.fromCommit.Min() != 0 || got.fromStart.Max() != 35 || got.fromStart.Min() != 0 {
		t.Errorf("from commit %d to %d, from start %d to %d", got.fromCommit.Min(), got.fromCommit.Max(), got.fromStart.Min(), got.fromStart.Max())
	}
	if got.delivered != 2 || got.maxLag != 1 {
		t.Errorf("%d delivered, largest lag %d; want 2 and 1", got.delivered, got.maxLag)
	}
	at := func(seconds float64) messages.LagPoint {
		i := slices.IndexFunc(got.lag, func(p messages.LagPoint) bool { return p.AtSeconds*1e9 >= seconds-0.5 })
		return got.lag[i]
	}
	if p := at(20); p.Committed != 1 || p.Delivered != 0 {
		t.Errorf("after 20 ns: %+v", p)
	}
	if p := at(99); p.Committed != 2 || p.Delivered != 2 {
		t.Errorf("in the end: %+v", p)
	}
	if early := l.times(0, 50); early.delivered != 1 {
		t.Errorf("%d delivered within a window that ends before the second", early.delivered)
	}
}

func TestReachedIsToldOnce(t *testing.T) {
	l := story(t, "h0 c0.0 h0 c0.1 d0.0")
	reached := l.Reached(2)
	select {
	case <-reached:
		t.Fatal("reached after one of two")
	default:
	}
	p := payloads{Filler(MinPayload)}
	l.Deliver(p.message(0, 1).Payload, 1)
	l.Deliver(p.message(0, 1).Payload, 2)
	<-reached
}
