package outbox

import (
	"context"
	"errors"
	"sync"
	"time"
)

// workers is the usual design: each worker claims a batch of rows with locks,
// publishes it, records the outcomes and commits.
type workers struct {
	*Relay

	mu      sync.Mutex
	sweepAt time.Time // when a claim without the window is due
}

func newWorkers(r *Relay) *workers {
	return &workers{Relay: r, sweepAt: time.Now()}
}

// announce makes the claims of this relay known to leaders, waiting for a database that is
// away. It returns nil if the store has no such announcements, or when ctx ends.
func (r *Relay) announce(ctx context.Context) (Presence, error) {
	store, ok := r.store.(Announcer)
	if !ok {
		return nil, nil
	}
	wait := backoff{least: 100 * time.Millisecond, most: 5 * time.Second}
	for {
		present, err := store.Announce(ctx)
		switch {
		case err == nil:
			return present, nil
		case ctx.Err() != nil:
			return nil, nil
		case errors.Is(err, ErrMixedClaims), errors.Is(err, ErrPooled):
			return nil, err
		}
		r.cfg.Logger.Warn("cannot announce how rows are claimed, trying again", "table", r.store.Name(), "error", err)
		wait.sleep(ctx)
	}
}

// stayAnnounced repeats the announcement whenever its session has ended, until ctx ends.
func (r *Relay) stayAnnounced(ctx context.Context, present Presence) (err error) {
	for present != nil {
		select {
		case <-ctx.Done():
			if err := present.Close(); err != nil {
				r.cfg.Logger.Debug("closing the session that announces claims", "error", err)
			}
			return nil
		case <-present.Lost():
			_ = present.Close() // it has already ended
		}
		if present, err = r.announce(ctx); err != nil {
			return err
		}
	}
	return nil
}

// run is one worker. It returns nil when stop ends, or an error if waiting cannot
// help.
func (w *workers) run(stop context.Context) error {
	work, cancel := context.WithCancel(context.WithoutCancel(stop))
	defer cancel()
	defer context.AfterFunc(stop, func() {
		sleep(work, w.cfg.DrainTimeout)
		cancel()
	})()
	rings, leave := w.bell.listen()
	defer leave()
	c := &courier{Relay: w.Relay, log: w.cfg.Logger, broker: newBroker()}
	broker := c.broker
	var missed away
	defer broker.forget(w.Relay)
	pause, trouble := w.cfg.MinPoll, backoff{least: 10 * time.Millisecond, most: 5 * time.Second}
	for w.gate.wait(stop) == nil {
		n, outage, err := w.once(stop, work, c, &missed)
		switch {
		case stop.Err() != nil:
			return nil
		case errors.Is(err, ErrWindowNeedsPartitions), errors.Is(err, ErrNoSkipLocked):
			return err
		case err != nil:
			w.cfg.Logger.Warn("a claim failed, trying again", "table", w.store.Name(), "error", err)
			trouble.sleep(stop)
			continue
		}
		trouble.reset()
		broker.note(w.Relay, w.cfg.Logger, outage)
		switch {
		case outage != nil:
			broker.pause(stop, outage)
			continue
		case n > 0:
			pause = w.cfg.MinPoll
			continue
		}
		timer := time.NewTimer(pause)
		select {
		case <-rings:
			pause = w.cfg.MinPoll
		case <-timer.C:
			pause = min(2*pause, w.cfg.MaxPoll)
		case <-stop.Done():
		}
		timer.Stop()
	}
	return nil
}

// once claims, publishes and finishes one batch and returns its size.
func (w *workers) once(stop, work context.Context, c *courier, missed *away) (n int, outage, err error) {
	window, asked := w.window(), time.Now()
	claim, err := w.store.Claim(stop, ClaimRequest{
		Limit: w.limit.most(w.cfg.Batch), MaxBytes: max(1, w.cfg.MaxInFlightBytes/w.cfg.Publishers), Window: window,
	})
	if err != nil {
		return 0, nil, err
	}
	w.rec.rounds.Add(1)
	defer func() { err = errors.Join(err, claim.Release()) }()
	rows, buried, gone := unreadable(claim.Rows())
	if len(rows)+len(gone) == 0 {
		return 0, nil, nil
	}
	w.noteOutside(rows, window, time.Since(asked))
	rows, notes := w.admitted(rows)
	if err := w.limit.wait(stop, len(rows)); err != nil {
		return 0, nil, err
	}
	_, bytes := numbers(rows)
	w.rec.read.Add(uint64(len(rows) + len(gone)))
	w.rec.inFlight.Add(int64(len(rows)))
	w.rec.inFlightBytes.Add(int64(bytes))
	defer w.rec.inFlight.Add(-int64(len(rows)))
	defer w.rec.inFlightBytes.Add(-int64(bytes))

	var v verdict
	if len(rows) > 0 {
		rows = awayLast(w.Relay, missed, rows, theRow, len(rows))
		began, before := time.Now(), w.circuits.now()
		errs := c.publish(work, stop, rows)
		if v, err = w.judge(call{ctx: work, before: before, took: time.Since(began)}, rows, errs); err != nil {
			return 0, nil, err
		}
		missed.note(&v)
		w.rec.published(time.Since(began), len(rows), v.delivered)
	}
	v.buried, v.gone = append(v.buried, buried...), append(v.gone, gone...)
	acked, _ := numbers(v.delivered)
	notes = append(notes, v.parked...)
	for i, row := range v.held { // so that no claim takes them earlier
		notes = append(notes, Parking{row.Seq, row.ID, row.Attempts, v.holds[i].delay, v.holds[i].err.Error()})
	}
	if err := claim.Finish(work, acked, notes, v.buried); err != nil {
		return 0, nil, err
	}
	w.rec.ackedRows(len(acked))
	w.rec.retries.Add(uint64(len(v.parked)))
	w.logBuried(w.cfg.Logger, v.buried, v.gone)
	return len(rows) + len(gone) + len(notes), v.outage, nil
}

// admitted removes the rows whose destination takes nothing now, and records until when they
// wait.
func (w *workers) admitted(rows []Row) (ready []Row, notes []Parking) {
	if w.circuits.waiting() == 0 {
		return rows, nil
	}
	now := time.Now()
	for _, row := range rows {
		if ok, until, _ := w.circuits.admit(&row.Message, now); !ok {
			notes = append(notes, Parking{row.Seq, row.ID, row.Attempts, until.Sub(now), "its destination takes no messages"})
			continue
		}
		ready = append(ready, row)
	}
	return ready, notes
}

// window is the configured one, or none when a scan of the whole table is due.
func (w *workers) window() time.Duration {
	if w.cfg.Window == 0 {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Now().Before(w.sweepAt) {
		return w.cfg.Window
	}
	w.sweepAt = time.Now().Add(w.cfg.SweepEvery)
	return 0
}

// outsideShare bounds the share of time for scans of the whole table while there are
// rows outside the window: one part in this many.
const outsideShare = 10

// noteOutside counts the rows that only a scan of the whole table has found. While
// there are any, the next scan is due soon, after a pause that leaves
// most of the time to the window: took is how long this one took.
func (w *workers) noteOutside(rows []Row, window, took time.Duration) {
	if w.cfg.Window == 0 || window > 0 {
		return
	}
	n := 0
	for i := range rows {
		if time.Since(rows[i].CreatedAt) > w.cfg.Window {
			n++
		}
	}
	if n == 0 {
		return
	}
	w.rec.outside.Add(uint64(n))
	w.mu.Lock()
	w.sweepAt = time.Now().Add(min(max((outsideShare-1)*took, w.cfg.MaxPoll), w.cfg.SweepEvery))
	w.mu.Unlock()
}
