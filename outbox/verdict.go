package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// verdict is what became of the rows of one Publish call.
type verdict struct {
	delivered []Row
	failed    []Row // to be tried again later, Attempts counted
	delays    []time.Duration
	parked    []Parking // the notes of failed
	buried    []Burial
	gone      []Row // the rows of buried
	back      []Row // not sent, or met no broker: next in line again
	outage    error
}

// judge sorts rows by the sink's answers. ctx is the one that Publish had.
func judge(ctx context.Context, cfg Config, rows []Row, errs []error) (verdict, error) {
	var v verdict
	if errs == nil {
		v.delivered = rows
		return v, nil
	}
	if len(errs) != len(rows) {
		return v, fmt.Errorf("outbox: the sink answered %d results for %d messages", len(errs), len(rows))
	}
	// A message that stays first of its key settles nothing for those behind it:
	// whatever the sink says of them, they wait for it.
	failing := map[string]bool{}
	for i, row := range rows {
		err := errs[i]
		ordered := row.Key != "" && !cfg.Unordered
		switch {
		case err == nil:
			v.delivered = append(v.delivered, row)
		case ordered && failing[row.Key], errors.Is(err, ErrHeldBack), ctx.Err() != nil:
			v.back = append(v.back, row)
			failing[row.Key] = ordered
			if IsUnavailable(err) {
				v.outage = err
			}
		case IsUnavailable(err):
			v.back = append(v.back, row)
			failing[row.Key] = ordered
			v.outage = err
		case IsRejected(err):
			v.buried = append(v.buried, Burial{row.Seq, row.Attempts + 1, "rejected", err.Error()})
			v.gone = append(v.gone, row)
		case row.Attempts+1 >= cfg.Retry.MaxAttempts:
			v.buried = append(v.buried, Burial{row.Seq, row.Attempts + 1, "attempts", err.Error()})
			v.gone = append(v.gone, row)
		default:
			row.Attempts++
			delay, named := retryDelay(err)
			if !named {
				delay = cfg.Retry.delay(row.Attempts)
			}
			v.failed = append(v.failed, row)
			v.delays = append(v.delays, delay)
			v.parked = append(v.parked, Parking{row.Seq, row.Attempts, delay, err.Error()})
			failing[row.Key] = ordered
		}
	}
	if len(v.back) == len(rows) && v.outage == nil && ctx.Err() == nil {
		v.outage = errors.New("outbox: the sink held every message back")
	}
	return v, nil
}

// unreadable splits off the rows that are no messages.
func unreadable(rows []Row) (readable []Row, buried []Burial, gone []Row) {
	if !slices.ContainsFunc(rows, func(r Row) bool { return r.Unreadable != nil }) {
		return rows, nil, nil
	}
	for _, row := range rows {
		if row.Unreadable != nil {
			buried = append(buried, Burial{row.Seq, row.Attempts, "unreadable", row.Unreadable.Error()})
			gone = append(gone, row)
		} else {
			readable = append(readable, row)
		}
	}
	return readable, buried, gone
}

// numbers are the rows' numbers and the bytes of their payloads.
func numbers(rows []Row) (seqs []int64, bytes int) {
	seqs = make([]int64, len(rows))
	for i := range rows {
		seqs[i] = rows[i].Seq
		bytes += len(rows[i].Payload)
	}
	return seqs, bytes
}

// messages appends the rows' messages.
func messages(to []Message, rows []Row) []Message {
	for i := range rows {
		to = append(to, rows[i].Message)
	}
	return to
}

func (r *Relay) logBuried(log *slog.Logger, buried []Burial, rows []Row) {
	for i, b := range buried {
		r.rec.buriedRows(b.Reason, 1)
		log.Warn("buried a message", "id", rows[i].ID, "topic", rows[i].Topic, "reason", b.Reason,
			"attempts", b.Attempts, "error", b.Error)
	}
}

// broker is what one publisher knows of the broker.
type broker struct {
	down bool
	wait backoff
}

func newBroker() broker {
	return broker{wait: backoff{least: 50 * time.Millisecond, most: 5 * time.Second}}
}

// longestPause is the most that a broker may ask a publisher to wait.
const longestPause = 5 * time.Minute

// pause waits before the next call to a broker that could not be met: as long
// as it asked for, otherwise longer each time.
func (b *broker) pause(ctx context.Context, outage error) {
	d := b.wait.take()
	if named, ok := retryDelay(outage); ok {
		d = max(d, min(named, longestPause))
	}
	sleep(ctx, d)
}

// note takes in whether the last call met the broker. The first publisher that
// meets none, and the last that meets it again, say so.
func (b *broker) note(r *Relay, log *slog.Logger, outage error) {
	if outage != nil {
		r.rec.outages.Add(1)
	}
	switch {
	case outage != nil && !b.down:
		b.down = true
		if r.rec.brokersDown.Add(1) == 1 {
			log.Warn("the broker cannot take messages, waiting for it; no message spends an attempt", "error", outage)
		}
	case outage == nil && b.down:
		b.forget(r)
		b.wait.reset()
		if r.rec.brokersDown.Load() == 0 {
			log.Info("the broker takes messages again")
		}
	}
}

func (b *broker) forget(r *Relay) {
	if b.down {
		b.down = false
		r.rec.brokersDown.Add(-1)
	}
}
