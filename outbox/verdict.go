package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// verdict is what became of the rows of one Publish call.
type verdict struct {
	delivered []Row
	failed    []Row // to be tried again later, Attempts counted
	delays    []time.Duration
	parked    []Parking // the notes of failed
	held      []Row     // to be tried again later, no attempt spent
	holds     []hold
	buried    []Burial
	gone      []Row // the rows of buried
	back      []Row // not sent, or met no broker: next in line again
	outage    error
	absent    map[string]bool // with outage: destinations that were sent to in vain
}

// hold is why and how long a row waits that has spent no attempt.
type hold struct {
	destination string // empty: it waits for none
	delay       time.Duration
	err         error
	past        past
}

// call is what judge needs to know of a Publish call besides its answers.
type call struct {
	ctx    context.Context // the one that Publish had
	before uint64          // confirmations of the relay when it began, by circuits.confirmed
	took   time.Duration
	stuck  bool           // what met no broker keeps everything else from being read
	pasts  map[int64]past // by number: of rows that waited for a part that is away
}

// past is what is known of a message whose part of the broker is away, as opposed to
// its destination.
type past struct {
	apart bool // its destination takes others
	tries int
}

// judge sorts rows by the sink's answers.
func (r *Relay) judge(c call, rows []Row, errs []error) (verdict, error) {
	var v verdict
	if errs != nil && len(errs) != len(rows) {
		return v, fmt.Errorf("outbox: the sink answered %d results for %d messages", len(errs), len(rows))
	}
	taken := r.noteTaken(rows, errs)
	defer func() {
		r.dests.took(v.delivered, r.circuits.route, time.Now())
		r.circuits.confirmed(r.circuits.placesOf(v.delivered))
	}()
	if errs == nil {
		v.delivered = rows
		return v, nil
	}
	// A message that stays first of its key decides for the later ones of its key:
	// whatever the sink answers about them, they wait for it.
	failing := map[string]bool{}
	some := slices.Contains(errs, nil)
	for i, row := range rows {
		err := errs[i]
		ordered := row.Key != "" && !r.cfg.Unordered
		// If the broker takes other messages, it is the destination that is away.
		away, alone := IsUnavailable(err), false
		if away && c.ctx.Err() == nil {
			if d := r.circuits.place(&row.Message); some || r.circuits.takesOthers(d, row.Seq, c.before) {
				alone = true
			} else {
				v.outage = err
				if v.absent == nil {
					v.absent = map[string]bool{}
				}
				v.absent[d] = true
				alone = c.stuck || r.circuits.isOpen(d)
			}
		}
		switch {
		case err == nil:
			v.delivered = append(v.delivered, row)
		case ordered && failing[row.Key], errors.Is(err, ErrHeldBack), c.ctx.Err() != nil, away && !alone:
			v.back = append(v.back, row)
			failing[row.Key] = ordered
		case IsInvalid(err):
			v.bury(r, row, "rejected", err)
		default:
			if v.fail(r, &c, row, err, taken) {
				failing[row.Key] = ordered
			}
		}
	}
	if v.outage != nil && len(v.delivered) == 0 {
		r.circuits.missed()
	}
	if len(v.back) == len(rows) && v.outage == nil && c.ctx.Err() == nil {
		v.outage = errors.New("outbox: the sink held every message back")
	}
	return v, nil
}

// noteTaken tells the circuits which destinations have taken messages, and returns
// those.
func (r *Relay) noteTaken(rows []Row, errs []error) map[string]bool {
	if errs == nil && r.circuits.calm() {
		return nil // not used
	}
	seqs := map[string][]int64{}
	for i := range rows {
		if errs == nil || errs[i] == nil {
			d := r.circuits.route(&rows[i].Message)
			seqs[d] = append(seqs[d], rows[i].Seq)
			if part := r.circuits.place(&rows[i].Message); part != d {
				seqs[part] = append(seqs[part], rows[i].Seq)
			}
			seqs[wholeSink] = append(seqs[wholeSink], rows[i].Seq)
		}
	}
	taken := make(map[string]bool, len(seqs))
	for d := range seqs {
		taken[d] = true
		if r.circuits.took(d, seqs[d]) {
			r.cfg.Logger.Info("a destination takes messages again", "table", r.store.Name(), "destination", d)
		}
	}
	return taken
}

// fail handles a row whose failure may be the message's fault or the destination's. It
// reports whether the row stays first of its key.
func (v *verdict) fail(r *Relay, c *call, row Row, err error, taken map[string]bool) bool {
	named, asked := retryDelay(err)
	named = min(named, longestNamed)
	d := r.circuits.route(&row.Message)
	switch {
	case IsBroken(err):
		d = wholeSink
	case IsUnavailable(err):
		d = r.circuits.place(&row.Message)
	}
	rule := r.circuits.failed(failure{d, row.Seq, kindOf(err), taken[d], named, c.took, c.before, c.pasts[row.Seq]}, r.cfg.Retry, time.Now())
	if rule.opened {
		r.cfg.Logger.Warn("a destination takes no messages: its own wait and spend no attempt, others go on",
			"table", r.store.Name(), "destination", d, "error", err)
	}
	if !rule.spend {
		r.dests.failed(r.circuits.route(&row.Message), &row, rule.wait, err, time.Now())
		h := hold{d, rule.wait, err, rule.past}
		if rule.past.apart {
			h.destination = ""
		}
		v.held, v.holds = append(v.held, row), append(v.holds, h)
		r.complain(row, d, "waits, and spends no attempt", rule.wait, err)
		return true
	}
	if IsRejected(err) {
		v.bury(r, row, "rejected", err)
		return false
	}
	if row.Attempts+1 >= r.cfg.Retry.MaxAttempts {
		v.bury(r, row, "attempts", err)
		return false
	}
	row.Attempts++
	delay := named
	if !asked {
		delay = r.cfg.Retry.delay(row.Attempts)
	}
	r.dests.failed(r.circuits.route(&row.Message), &row, delay, err, time.Now())
	v.failed = append(v.failed, row)
	v.delays = append(v.delays, delay)
	v.parked = append(v.parked, Parking{row.Seq, row.ID, row.Attempts, delay, err.Error()})
	r.complain(row, d, "is tried again", delay, err)
	return true
}

// wholeSink is the destination of messages that break a connection: other messages of the
// sink show whether these are at fault.
const wholeSink = "\x00"

func (v *verdict) bury(r *Relay, row Row, reason string, err error) {
	d := r.circuits.route(&row.Message)
	r.dests.failed(d, &row, 0, err, time.Now())
	r.circuits.forget(d, row.Seq)
	r.circuits.forget(r.circuits.place(&row.Message), row.Seq)
	r.circuits.forget(wholeSink, row.Seq)
	v.buried = append(v.buried, Burial{row.Seq, row.ID, row.Attempts + 1, reason, err.Error()})
	v.gone = append(v.gone, row)
}

// Limits of log lines about failing messages: a burst, then one each complainEvery.
const (
	complainAtOnce = 20
	complainEvery  = time.Second
)

// complaints bounds how many lines about failures are logged.
type complaints struct {
	mu     sync.Mutex
	lines  int       // that may still be logged at once
	at     time.Time // when lines was last updated
	silent int       // failures that were not logged
}

// take reports whether one more line may be logged, and how many were suppressed before it.
func (c *complaints) take(now time.Time) (ok bool, silent int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if more := int(now.Sub(c.at) / complainEvery); more > 0 {
		c.at = now
		c.lines = min(complainAtOnce, c.lines+more)
	}
	if c.lines == 0 {
		c.silent++
		return false, 0
	}
	c.lines--
	silent, c.silent = c.silent, 0
	return true, silent
}

// complain logs a failed attempt. If there are too many, they are counted in the
// next line.
func (r *Relay) complain(row Row, destination, what string, wait time.Duration, err error) {
	now := time.Now()
	ok, silent := r.rec.failures.take(now)
	if !ok {
		return
	}
	if destination == wholeSink {
		destination = "the broker's connection"
	}
	r.cfg.Logger.Warn("a message failed and "+what, "table", r.store.Name(), "id", row.ID, "topic", row.Topic, "destination", destination,
		"attempts", row.Attempts, "in", wait.Round(time.Millisecond).String(), "next_attempt", now.Add(wait).UTC().Format(time.RFC3339Nano),
		"error", err, "failures_not_shown", silent)
}

// unreadable separates the rows that are not valid messages, or exceed the limits:
// producers in plain SQL can write what Enqueue refuses.
func unreadable(rows []Row) (readable []Row, buried []Burial, gone []Row) {
	if !slices.ContainsFunc(rows, func(r Row) bool { return r.fault() != nil }) {
		return rows, nil, nil
	}
	for _, row := range rows {
		if err := row.fault(); err != nil {
			buried = append(buried, Burial{row.Seq, row.ID, row.Attempts, "unreadable", err.Error()})
			gone = append(gone, row)
		} else {
			readable = append(readable, row)
		}
	}
	return readable, buried, gone
}

// fault is why the row is not a valid message, nil if it is one.
func (r *Row) fault() error {
	if r.Unreadable != nil {
		return r.Unreadable
	}
	return r.limits()
}

// numbers returns the rows' numbers and the total size of their payloads.
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
		r.dests.buried(r.circuits.route(&rows[i].Message), rows[i].Seq)
		if ok, silent := r.rec.failures.take(time.Now()); ok {
			log.Warn("buried a message", "id", rows[i].ID, "topic", rows[i].Topic, "destination", r.circuits.route(&rows[i].Message),
				"reason", b.Reason, "attempts", b.Attempts, "error", b.Error, "failures_not_shown", silent)
		}
	}
}

// broker is one publisher's view of the broker. It is safe for concurrent use.
type broker struct {
	mu   sync.Mutex
	down bool
	wait backoff
}

func newBroker() *broker {
	return &broker{wait: backoff{least: 50 * time.Millisecond, most: 5 * time.Second}}
}

func (b *broker) isDown() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.down
}

// longestPause is the longest time for which a broker may ask a publisher to wait.
const longestPause = 5 * time.Minute

// pause waits before the next call to a broker that could not be reached: as long
// as it asked for, otherwise longer each time.
func (b *broker) pause(ctx context.Context, outage error) {
	b.mu.Lock()
	d := b.wait.take()
	b.mu.Unlock()
	if named, ok := retryDelay(outage); ok {
		d = max(d, min(named, longestPause))
	}
	sleep(ctx, d)
}

// note records whether the last call reached the broker. The first publisher that
// does not reach it, and the last one that reaches it again, log that.
func (b *broker) note(r *Relay, log *slog.Logger, outage error) {
	if outage != nil {
		r.rec.outages.Add(1)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case outage != nil && !b.down:
		b.down = true
		if r.rec.brokersDown.Add(1) == 1 {
			log.Warn("the broker cannot take messages, waiting for it; no message spends an attempt", "error", outage)
		}
	case outage == nil && b.down:
		b.up(r)
		b.wait.reset()
		if r.rec.brokersDown.Load() == 0 {
			log.Info("the broker takes messages again")
		}
	}
}

func (b *broker) forget(r *Relay) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.up(r)
}

// up records that the broker can be reached again. b.mu is held.
func (b *broker) up(r *Relay) {
	if b.down {
		b.down = false
		r.rec.brokersDown.Add(-1)
	}
}
