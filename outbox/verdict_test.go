package outbox

import (
	"context"
	"errors"
	"testing"
)

// A sink may answer for a later message of a key although an earlier one met no
// broker. What it says of the later one must not bring that before the other.
func TestJudgeLetsNothingPassAMessageThatStays(t *testing.T) {
	row := func(seq int64, key string) Row { return Row{Seq: seq, Message: Message{Key: key}} }
	rows := []Row{row(1, "a"), row(2, "a"), row(3, "a"), row(4, ""), row(5, "b")}
	failed := errors.New("failed")
	errs := []error{Unavailable(errors.New("gone")), failed, Reject(errors.New("too large")), failed, nil}
	cfg := Config{}.withDefaults()
	check := func(cfg Config, back, held, failed, buried, delivered int) {
		t.Helper()
		r, err := NewRelay(newMemStore(), &memSink{}, cfg)
		if err != nil {
			t.Fatal(err)
		}
		r.circuits.confirmed([]string{""}) // it has taken some, before
		v, err := r.judge(call{ctx: context.Background(), before: r.circuits.now()}, rows, errs)
		if err != nil {
			t.Fatal(err)
		}
		if len(v.back) != back || len(v.held) != held || len(v.failed) != failed || len(v.buried) != buried || len(v.delivered) != delivered || (v.outage == nil) != (delivered > 0) {
			t.Errorf("unordered %v: %d go back, %d are held, %d failed, %d buried, %d delivered, outage %v", cfg.Unordered,
				len(v.back), len(v.held), len(v.failed), len(v.buried), len(v.delivered), v.outage)
		}
	}
	check(cfg, 2, 1, 1, 0, 1) // as others are taken, the first one's destination is away
	cfg.Unordered = true
	check(cfg, 0, 1, 2, 1, 1)
	errs[4] = ErrHeldBack
	check(cfg, 2, 1, 1, 1, 0) // the third that fails, with none taken, waits
	cfg.Unordered = false
	check(cfg, 4, 0, 1, 0, 0)
}
