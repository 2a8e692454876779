package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// tailing is a tail and the goroutines that wait for it.
type tailing struct {
	rows  chan []Row
	left  []Row         // taken from rows, not passed on yet for lack of room
	began time.Time     // when the log was followed
	ended chan struct{} // closed with err set
	err   error
	stop  func()
	// joined is that of joiner.
	joined func(context.Context) (bool, error)
}

// errKept ends a tail because of which the server keeps too much of its log.
var errKept = errors.New("the server would keep its log for a relay that cannot deliver")

// keeper is a tail that can say how much log the server keeps for it.
type keeper interface {
	// Kept is the size of that log.
	Kept(ctx context.Context) (bytes int64, err error)
}

// prober is a tail that can notice that nothing is written to its log any more.
type prober interface {
	// Probe returns an error if that is so.
	Probe() error
}

// joiner is a tail that begins a moment before the table shows everything that had been
// committed by then.
type joiner interface {
	// Joined reports whether the table shows that now.
	Joined(ctx context.Context) (bool, error)
}

// beginTail starts to follow the log, if that is wanted and possible. It opens the tail
// while the table is read; once the table shows everything that was committed before the
// tail's beginning, one more full read finds that, so beginTail reports caughtUp only after
// that read. Until then the table is read as usual.
func (l *lead) beginTail() (caughtUp bool, err error) {
	soon := time.Now().Before(l.tailAt) || l.rec.brokersDown.Load() > 0 // the tail would be given up at once
	if l.cfg.Claim != Auto && l.cfg.Claim != Log || l.joining == nil && l.opening == nil && soon {
		return false, nil
	}
	if l.joining == nil {
		if l.joining, err = l.opened(); l.joining == nil {
			return false, err
		}
	}
	t := l.joining
	switch joined, err := t.joined(l.work); {
	case closed(t.ended): // read notices that and ends the tail
		l.tail, l.joining = t, nil
		return true, nil
	case err != nil || !joined:
		return false, err
	}
	l.joining = nil
	for {
		rows, bytes, ok := l.waitRoom(t.ended)
		if !ok || closed(t.ended) {
			l.tail = t
			return true, nil // as above
		}
		more, _, err := l.round(rows, bytes)
		if err != nil {
			t.stop()
			return false, err
		}
		if !more {
			break
		}
	}
	l.tail = t
	l.rec.setTailReason("")
	l.rec.tailing.Add(1)
	t.began = time.Now()
	l.roundAt, l.heardAt, l.silent = t.began.Add(l.cfg.SweepEvery), t.began, false
	l.log.Info("following the log")
	return true, nil
}

// opening is a tail that is being opened, which may take the server some time; the
// table is read meanwhile.
type opening struct {
	done chan struct{} // closed with tail or err set
	tail *tailing
	err  error
	stop context.CancelFunc
}

// opened is the tail that the leadership has opened; nil while it is still being opened, and
// if the log cannot be followed now.
func (l *lead) opened() (*tailing, error) {
	o := l.opening
	if o == nil {
		l.opening = l.openTail()
		return nil, nil
	}
	if !closed(o.done) {
		return nil, nil
	}
	l.opening = nil
	o.stop()
	var reason *TailError
	if !errors.As(o.err, &reason) {
		return o.tail, o.err
	}
	l.tailAt = time.Now().Add(l.tailWait.take())
	if l.rec.setTailReason(reason.Reason) {
		l.log.Info("polling: the log cannot be followed", "reason", reason.Reason)
	}
	return nil, nil
}

func (l *lead) openTail() *opening {
	ctx, cancel := context.WithCancel(l.live)
	o := &opening{done: make(chan struct{}), stop: cancel}
	go func() { // endTail waits for it
		defer l.bell.ring()
		defer close(o.done)
		tail, err := l.lease.Tail(ctx)
		if err != nil {
			o.err = err
			return
		}
		o.tail = l.startTail(tail)
	}()
	return o
}

// endOpening abandons a tail that is being opened.
func (l *lead) endOpening() {
	o := l.opening
	if o == nil {
		return
	}
	l.opening = nil
	o.stop()
	<-o.done
	if o.tail != nil {
		o.tail.stop()
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (l *lead) startTail(tail Tail) *tailing {
	ctx, cancel := context.WithCancelCause(l.work)
	t := &tailing{rows: make(chan []Row), ended: make(chan struct{})}
	t.joined = func(context.Context) (bool, error) { return true, nil }
	if j, ok := tail.(joiner); ok {
		t.joined = j.Joined
	}
	go func() {
		defer close(t.ended)
		defer cancel(nil)
		rhythm := tailPacer{pause: l.cfg.MinPoll}
		for {
			rows, err := tail.Next(ctx)
			if err == nil {
				err = l.offer(ctx, t, rows)
			}
			if pause := rhythm.next(time.Now(), len(rows)); pause > 0 && err == nil {
				sleep(ctx, pause)
			}
			if err != nil {
				if cause := context.Cause(ctx); cause != nil {
					err = cause
				}
				t.err = err
				l.closeTail(tail) // at once: the lead may have ended, and would not notice
				return
			}
		}
	}()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		l.watchLog(ctx, tail, cancel)
	}()
	t.stop = func() {
		cancel(nil)
		<-t.ended
		<-watched
	}
	return t
}

func (l *lead) closeTail(tail Tail) {
	if err := tail.Close(); err != nil {
		l.log.Debug("closing the tail", "error", err)
	}
	l.rec.logKept.Store(0)
}

// offer waits until the lead takes the rows. A server keeps its log for a tail that is not
// read, so offer waits only for a while: the table has the rows as well.
func (l *lead) offer(ctx context.Context, t *tailing, rows []Row) error {
	late := time.NewTimer(l.cfg.LogWait)
	defer late.Stop()
	select {
	case t.rows <- rows:
		return nil
	case <-late.C:
		return fmt.Errorf("%w: nothing was taken from it for %v", errKept, l.cfg.LogWait)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// watchLog ends the tail if the server keeps too much of its log for it, or no longer
// writes to it.
func (l *lead) watchLog(ctx context.Context, tail Tail, end context.CancelCauseFunc) {
	k, keeps := tail.(keeper)
	p, probes := tail.(prober)
	if !keeps && !probes {
		return
	}
	tick := time.NewTicker(keptEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if probes {
			if err := p.Probe(); err != nil {
				end(err)
				return
			}
		}
		if !keeps {
			continue
		}
		bytes, err := k.Kept(ctx)
		if err != nil {
			continue // the tail, or the leadership, ends for the same reason
		}
		l.rec.logKept.Store(bytes)
		if bytes > int64(l.cfg.LogKeep) {
			end(fmt.Errorf("%w, or for a transaction that stays open: %d MB, more than %d MB", errKept, bytes>>20, l.cfg.LogKeep>>20))
			return
		}
	}
}

// endTail returns to polling.
func (l *lead) endTail(err error) {
	l.endOpening()
	if l.joining != nil {
		l.joining.stop()
		l.joining = nil
	}
	t := l.tail
	if t == nil {
		return
	}
	t.stop()
	l.tail = nil
	if !t.began.IsZero() {
		l.rec.tailing.Add(-1)
		if time.Since(t.began) > longTail {
			l.tailWait.reset()
		}
	}
	if err == nil {
		return
	}
	l.rec.setTailReason(err.Error())
	l.tailAt = time.Now().Add(l.tailWait.take())
	if errors.Is(err, errKept) {
		l.rec.logDrops.Add(1)
		l.log.Warn("polling: stopped following the log, so that the server can remove it; it is followed again later", "reason", err)
		return
	}
	l.log.Warn("polling: following the log ended", "error", err)
}

// follow passes on the tail's rows, as far as there is room, or does what falls
// due meanwhile. Numbers of rolled back transactions stay gaps until a read of
// the table proves them dead.
func (l *lead) follow(rows, bytes int) error {
	if err := l.prove(tailProof); err != nil {
		return err
	}
	if l.proven >= 0 || !time.Now().Before(l.roundAt) {
		if err := l.look(rows, bytes); err != nil {
			return err
		}
		return l.sweep()
	}
	t := l.tail
	if len(t.left) == 0 {
		timer := time.NewTimer(min(quietTail, time.Until(l.roundAt)))
		defer timer.Stop()
		select {
		case t.left = <-t.rows:
		case <-t.ended:
		case <-l.live.Done():
		case <-timer.C:
		}
	}
	if n := fit(t.left, rows, bytes); n > 0 {
		l.heardAt = time.Now()
		l.accept(t.left[:n])
		t.left = t.left[n:]
		l.rec.gaps.Store(int64(len(l.front.gaps)))
	}
	return l.sweep()
}

// look reads the table while the log is followed, because a log can fall silent without an
// error: the server may have become a replica, or the publication may have been dropped. While
// the log is silent and the table is not, the table is polled.
func (l *lead) look(rows, bytes int) error {
	more, fresh, err := l.round(rows, bytes)
	if err != nil {
		return err
	}
	wait := l.cfg.SweepEvery
	if l.silent = (l.silent || fresh > 0) && time.Since(l.heardAt) > quietLog; l.silent {
		wait = min(wait, l.cfg.MaxPoll)
	}
	if !more {
		l.roundAt = time.Now().Add(wait)
	}
	return nil
}

// fit is how many of the rows there is room for, at least one if there are any.
func fit(rows []Row, most, bytes int) (n int) {
	for n < len(rows) && n < most {
		if bytes -= len(rows[n].Payload); bytes < 0 && n > 0 {
			break
		}
		n++
	}
	return n
}
