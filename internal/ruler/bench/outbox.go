package bench

import (
	"fmt"

	"github.com/weirdb/weir/internal/measure"
)

// Outbox is what a round knows of messages on their way from a transaction to a
// broker. Sample.Ops counts those that were delivered, or, of producers alone,
// those that were committed.
type Outbox struct {
	PayloadBytes int `json:"payload_bytes"`
	// AckedSeconds is the time from the beginning of the window until every
	// delivery was noted in the database; 0 when nobody waited for that.
	AckedSeconds float64 `json:"acked_s,omitempty"`
	// FromStart counts from the intended start of the enqueue until delivery,
	// FromCommit from the moment at which the producer knew of its commit. Anyone who
	// follows the log may deliver before that; such a delivery counts as 0.
	FromStart  *measure.Hist `json:"from_start,omitempty"`
	FromCommit *measure.Hist `json:"from_commit,omitempty"`
	// MaxLag is the most messages that were committed and not delivered at any
	// time, Lag how many there were over time.
	MaxLag int64      `json:"max_lag,omitempty"`
	Lag    []LagPoint `json:"lag,omitempty"`
	// ClaimPages is how many pages of the server's cache one claim of a batch looks at
	// for each row that it takes, before any other is made; 0 when nobody counted.
	ClaimPages float64 `json:"claim_pages,omitempty"`
	Ledger     Ledger  `json:"ledger"`
	// Settings are those in effect, defaults included.
	Settings map[string]string `json:"settings,omitempty"`
}

// LagPoint is where producers and relay stood, in seconds since the window opened.
type LagPoint struct {
	AtSeconds float64 `json:"at_s"`
	Committed int64   `json:"committed"`
	Delivered int64   `json:"delivered"`
}

// Ledger is what became of every message of a round.
type Ledger struct {
	Handed    int64 `json:"handed"`            // to the database
	Committed int64 `json:"committed"`         // for certain
	Unknown   int64 `json:"unknown,omitempty"` // their commits failed: they may be there or not
	Delivered int64 `json:"delivered"`         // once or more often
	Lost      int64 `json:"lost"`              // committed and never delivered
	// Duplicates counts deliveries after the first, Disordered first deliveries
	// that came after one of a later message of the same key.
	Duplicates int64 `json:"duplicates"`
	Disordered int64 `json:"disordered"`
	Strangers  int64 `json:"strangers,omitempty"` // delivered, and never handed over
	// Pending counts messages that the round was not meant to deliver and that
	// were found in the table afterwards. They are not lost.
	Pending int64 `json:"pending,omitempty"`
}

// Broken says what the ledger holds against a relay, with its promises: every
// relay promises that nothing is lost and nothing invented, and most that the
// order of a key is kept.
func (l *Ledger) Broken(ordered bool) []string {
	var out []string
	if l.Lost > 0 {
		out = append(out, fmt.Sprintf("%d of %d committed messages were lost", l.Lost, l.Committed))
	}
	if l.Strangers > 0 {
		out = append(out, fmt.Sprintf("%d messages were delivered that nobody had handed over", l.Strangers))
	}
	if l.Disordered > 0 && ordered {
		out = append(out, fmt.Sprintf("%d of %d messages were delivered after a later one of their key", l.Disordered, l.Delivered))
	}
	return out
}

func (o *Outbox) fromCommit() *measure.Hist {
	if o == nil {
		return nil
	}
	return o.FromCommit
}

func (o *Outbox) fromStart() *measure.Hist {
	if o == nil {
		return nil
	}
	return o.FromStart
}
