package outbox

import "time"

// prove takes one step towards proving that open gaps are dead.
func (l *lead) prove(every time.Duration) error {
	now := time.Now()
	if len(l.front.gaps) == 0 || l.proven >= 0 || now.Sub(l.proofAt) < every {
		return nil
	}
	l.proofAt = now
	if l.markRound < 0 {
		mark, err := l.lease.Mark(l.work)
		if err != nil {
			return err
		}
		l.mark, l.markRound = mark, l.front.round
		l.front.begin() // gaps that open from here on are newer than the mark
		return nil
	}
	settled, err := l.lease.Settled(l.work, l.mark)
	if err != nil {
		return err
	}
	if settled {
		l.proven, l.markRound = l.markRound, -1
	}
	return nil
}

// sweep looks, from time to time, for pending rows that nothing else has found. One
// sweep finds suspects, the next confirms them: a row that was recorded as delivered
// while the sweep ran is not a stray.
func (l *lead) sweep() error {
	if time.Now().Before(l.sweepAt) || l.spills.Load() > 0 {
		return nil // rows that were dropped are not strays
	}
	defer func() { l.sweepAt = time.Now().Add(l.cfg.SweepEvery) }()
	var strays []int64
	suspects := map[int64]struct{}{}
	after, last := int64(0), l.front.after
	for {
		seqs, err := l.lease.Pending(l.work, after, last, sweepPage)
		if err != nil {
			return err
		}
		l.mu.Lock()
		for _, seq := range seqs {
			if _, known := l.out[seq]; known || l.front.open(seq) {
				continue
			}
			if _, again := l.suspects[seq]; again {
				strays = append(strays, seq)
			} else {
				suspects[seq] = struct{}{}
			}
		}
		l.mu.Unlock()
		if len(seqs) < sweepPage {
			break
		}
		after = seqs[len(seqs)-1]
	}
	l.suspects = suspects
	if l.spills.Load() > 0 {
		return nil
	}
	if len(strays) > 0 {
		l.log.Warn("found messages that no read had shown: their numbers were not handed out in order (a table that was emptied by TRUNCATE, a number written by hand)",
			"messages", len(strays))
	}
	for len(strays) > 0 {
		room, _, ok := l.waitRoom(nil)
		if !ok {
			return nil // they stay pending
		}
		n := min(len(strays), strayPage, room)
		rows, err := l.lease.Fetch(l.work, strays[:n])
		if err != nil {
			return err
		}
		l.rec.stray.Add(uint64(len(rows)))
		l.dispatch(rows)
		strays = strays[n:]
	}
	return nil
}
