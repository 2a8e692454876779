package outbox

import (
	"math"
	"time"
)

const (
	leapFetch = 32 // rows that are read at once
	leapRest  = 4  // times as long as a leap took it rests after it
	fewGaps   = 8  // which every store asks for one by one
)

// leap is a round where pages are full of rows that were seen and wait, among the gaps:
// of those the numbers are read alone, and the payloads of what is new. The numbers
// come out of one snapshot, as the order of keys wants it.
func (l *lead) leap(room int) (more bool, fresh int, err error) {
	began := time.Now()
	var pending, unseen []int64
	for limit := sweepPage; ; limit *= 4 {
		if pending, err = l.lease.Pending(l.work, l.front.low(), math.MaxInt64, limit); err != nil {
			return false, 0, err
		}
		l.rec.rounds.Add(1)
		for _, seq := range pending {
			if seq > l.front.after || l.front.open(seq) {
				unseen = append(unseen, seq)
			}
		}
		if more = len(pending) == limit; len(unseen) > 0 || !more {
			break
		}
	}
	covered := int64(math.MaxInt64)
	if more {
		covered = pending[len(pending)-1]
	}
	for len(unseen) > 0 && fresh < room && l.hasBytes() {
		part := unseen[:min(len(unseen), leapFetch, room-fresh)]
		rows, err := l.lease.Fetch(l.work, part)
		if err != nil {
			return false, fresh, err
		}
		fresh += l.accept(rows)
		unseen = unseen[len(part):]
	}
	if len(unseen) > 0 {
		more, covered = true, unseen[0]-1
	}
	l.dense = len(pending) > readLimit && len(l.front.gaps) > fewGaps
	l.stuck = false
	l.rest = 0
	if l.dense {
		l.rest = min(leapRest*time.Since(began), l.cfg.SweepEvery)
	}
	l.learn(covered, more)
	return more, fresh, nil
}

// hasBytes reports whether payloads may be read.
func (l *lead) hasBytes() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes < l.cfg.MaxInFlightBytes
}
