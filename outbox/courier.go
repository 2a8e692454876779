package outbox

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"
)

// courier gives messages to the sink for one publisher.
type courier struct {
	*Relay
	log    *slog.Logger
	broker *broker
	msgs   []Message // scratch
}

// publish gives the rows to the sink and returns its answers. When a connection
// broke under them it finds out which of them breaks it. work ends the calls,
// live the waiting between them.
func (c *courier) publish(work, live context.Context, rows []Row) []error {
	c.callLock.lockShared()
	c.msgs = messages(c.msgs[:0], rows)
	errs := c.sink.Publish(work, c.msgs)
	c.callLock.unlockShared()
	clear(c.msgs) // a courier that waits for work keeps no payloads
	if len(errs) != len(rows) || !slices.ContainsFunc(errs, IsBroken) {
		return errs
	}
	suspects := suspectsOf(errs)
	c.isolate(work, live, rows, errs, suspects)
	return errs
}

// suspectsOf are the messages that the connection broke under, and those that
// were held back behind one.
func suspectsOf(errs []error) []int {
	var out []int
	for i, err := range errs {
		if IsBroken(err) || errors.Is(err, ErrHeldBack) {
			out = append(out, i)
		}
	}
	return out
}

// isolate sends the suspects again with nothing beside them, by halves, and puts
// the answers into errs. A broker that is away is waited for: only what breaks a
// connection that could be made stays a suspect. After a minute it may be the
// destination of a part that is away: all go back then, and others have their turn.
//
//	breaks:  1 2 3 4 5 6 7 8
//	         1 2 3 4 | 5 6 7 8       1-4 are taken, 5-8 break it again
//	                   5 6 | 7 8     5, 6 are taken ...
//	                         7 | 8   7 breaks it, alone
func (c *courier) isolate(work, live context.Context, rows []Row, errs []error, suspects []int) {
	c.callLock.lockExclusive()
	defer c.callLock.unlockExclusive()
	failed := map[string]bool{} // keys whose message has broken it, alone
	parts := [][]int{suspects}
	met := time.Now()
	for len(parts) > 0 {
		part := slices.DeleteFunc(slices.Clone(parts[0]), func(i int) bool {
			held := rows[i].Key != "" && !c.cfg.Unordered && failed[rows[i].Key]
			if held {
				errs[i] = ErrHeldBack
			}
			return held
		})
		if len(part) == 0 {
			parts = parts[1:]
			continue
		}
		answers, away := c.again(work, rows, part)
		if away == nil {
			met = time.Now()
		} else if live.Err() == nil && time.Since(met) > awayLongest {
			for n, i := range part {
				errs[i] = answers[n]
			}
			for _, i := range slices.Concat(parts[1:]...) {
				errs[i] = ErrHeldBack
			}
			return
		}
		if away != nil && live.Err() == nil {
			c.broker.note(c.Relay, c.log, away)
			c.broker.pause(live, away)
			if live.Err() == nil {
				continue
			}
		}
		parts = parts[1:]
		for n, i := range part {
			if errs[i] = answers[n]; errs[i] != nil && !errors.Is(errs[i], ErrHeldBack) {
				failed[rows[i].Key] = true
			}
		}
		if live.Err() != nil {
			return
		}
		if left := suspectsOf(answers); len(part) > 1 && slices.ContainsFunc(answers, IsBroken) {
			for n := range left {
				left[n] = part[left[n]]
				delete(failed, rows[left[n]].Key)
			}
			parts = append(halves(left), parts...)
		}
	}
}

// again sends a part. away is why no message of it was on its way.
func (c *courier) again(work context.Context, rows []Row, part []int) (answers []error, away error) {
	msgs := make([]Message, len(part))
	for n, i := range part {
		msgs[n] = rows[i].Message
	}
	answers = c.sink.Publish(work, msgs)
	if answers == nil {
		return make([]error, len(msgs)), nil
	}
	if len(answers) != len(msgs) {
		answers = make([]error, len(msgs))
		for i := range answers {
			answers[i] = Doubtful(errors.New("outbox: the sink answered for another number of messages"))
		}
		return answers, nil
	}
	for _, err := range answers {
		if err == nil || IsBroken(err) {
			return answers, nil
		}
		if IsUnavailable(err) {
			away = err
		}
	}
	return answers, away
}

func halves(part []int) [][]int {
	if len(part) < 2 {
		return [][]int{part}
	}
	return [][]int{part[:len(part)/2], part[len(part)/2:]}
}

// callLock lets calls of the sink run concurrently (shared), or one alone (exclusive).
type callLock struct {
	calls chan struct{} // has one token per running call
	turn  chan struct{} // has one while an exclusive call runs or waits
}

// mostCalls is the most concurrent calls.
const mostCalls = 256

func newCallLock() callLock {
	return callLock{make(chan struct{}, mostCalls), make(chan struct{}, 1)}
}

func (s *callLock) lockShared() {
	s.turn <- struct{}{}
	<-s.turn
	s.calls <- struct{}{}
}

func (s *callLock) unlockShared() { <-s.calls }

func (s *callLock) lockExclusive() {
	s.turn <- struct{}{}
	for range mostCalls {
		s.calls <- struct{}{}
	}
}

func (s *callLock) unlockExclusive() {
	for range mostCalls {
		<-s.calls
	}
	<-s.turn
}
