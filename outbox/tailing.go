package outbox

import (
	"context"
	"errors"
	"time"
)

// tailing is a tail and the goroutine that waits for it.
type tailing struct {
	rows  chan []Row
	ended chan struct{} // closed with err set
	err   error
	stop  func()
}

// beginTail starts to follow the log, if that is wanted and possible. From the
// moment that the log is followed one more full read takes what was committed
// before, so it reports caughtUp only after that.
func (l *lead) beginTail() (caughtUp bool, err error) {
	if l.cfg.Claim != Auto && l.cfg.Claim != Log || time.Now().Before(l.tailAt) {
		return false, nil
	}
	tail, err := l.lease.Tail(l.work)
	if err != nil {
		var reason *TailError
		if !errors.As(err, &reason) {
			return false, err
		}
		l.tailAt = time.Now().Add(tailRetry)
		l.rec.setTailReason(reason.Reason)
		l.log.Info("polling: the log cannot be followed", "reason", reason.Reason)
		return false, nil
	}
	t := l.startTail(tail)
	for {
		rows, bytes, ok := l.waitRoom()
		if !ok {
			l.tail = t
			return true, nil // read notices and ends the tail
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
	l.log.Info("following the log")
	return true, nil
}

func (l *lead) startTail(tail Tail) *tailing {
	ctx, cancel := context.WithCancel(l.work)
	t := &tailing{rows: make(chan []Row), ended: make(chan struct{})}
	go func() {
		defer close(t.ended)
		for {
			rows, err := tail.Next(ctx)
			if err != nil {
				t.err = err
				return
			}
			select {
			case t.rows <- rows:
			case <-ctx.Done():
				t.err = ctx.Err()
				return
			}
		}
	}()
	t.stop = func() {
		cancel()
		<-t.ended
		if err := tail.Close(); err != nil {
			l.log.Debug("closing the tail", "error", err)
		}
	}
	return t
}

// endTail goes back to polling.
func (l *lead) endTail(err error) {
	if l.tail == nil {
		return
	}
	l.tail.stop()
	l.tail = nil
	l.rec.tailing.Add(-1)
	if err != nil {
		l.rec.setTailReason(err.Error())
		l.tailAt = time.Now().Add(time.Second)
		l.log.Warn("polling: following the log ended", "error", err)
	}
}

// follow takes one delivery of the tail, or does what falls due meanwhile.
func (l *lead) follow() error {
	timer := time.NewTimer(quietTail)
	defer timer.Stop()
	select {
	case rows := <-l.tail.rows:
		l.accept(rows)
		l.rec.gaps.Store(int64(len(l.front.gaps)))
	case <-l.tail.ended:
		l.endTail(l.tail.err)
		return nil
	case <-l.live.Done():
		return nil
	case <-timer.C:
	}
	// Numbers of rolled back transactions stay gaps until a read of the table
	// shows that they are dead.
	if err := l.prove(tailProof); err != nil {
		return err
	}
	if l.proven >= 0 {
		if _, _, err := l.round(readLimit, l.cfg.MaxInFlightBytes); err != nil {
			return err
		}
	}
	return l.sweep()
}
