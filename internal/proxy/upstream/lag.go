package upstream

import (
	"cmp"
	"slices"
	"time"
)

// A Lag is how far a standby is behind the primary among the hosts.
type Lag struct {
	// Known is false for a primary, while there is no primary, and for hosts that have not
	// reported their position.
	Known bool
	// Behind is what the primary has and the standby has not applied, in the unit of
	// Report.Position. The hosts are asked one after the other, so a standby of a
	// busy primary is always a little behind.
	Behind uint64
	// For is how long ago the primary was first seen to have a change that the standby has
	// not applied; 0 if that was in this round. It counts from the monitor's start, and is as
	// exact as the interval between two rounds. It does not depend on any host's clock.
	For time.Duration
}

// maxMarks bounds a trail: beyond it every second mark is dropped, which makes
// older ones less exact.
const maxMarks = 1024

// A trail records the positions of a primary, and when each was first seen.
type trail struct {
	of    Endpoint
	term  uint64
	marks []mark // by time, and by position
}

type mark struct {
	at       time.Time
	position uint64
}

// note adds the primary's position to the trail. The trail begins anew with another
// primary, and if the primary has lost data.
func (t *trail) note(now time.Time, h *Status) {
	n := len(t.marks)
	if t.of != h.Endpoint || t.term != h.Term || n > 0 && t.marks[n-1].position > h.Position {
		*t, n = trail{of: h.Endpoint, term: h.Term}, 0
	}
	if n > 0 && t.marks[n-1].position == h.Position {
		return
	}
	if n >= maxMarks {
		kept := t.marks[:0]
		for i := 0; i < n; i += 2 {
			kept = append(kept, t.marks[i])
		}
		t.marks = kept
	}
	t.marks = append(t.marks, mark{now, h.Position})
}

// lag is the lag of a standby that has applied everything up to a position.
func (t *trail) lag(now time.Time, position uint64) Lag {
	n := len(t.marks)
	if n == 0 {
		return Lag{}
	}
	first, _ := slices.BinarySearchFunc(t.marks, position, func(m mark, p uint64) int {
		if m.position > p {
			return 1
		}
		return -1
	})
	if first == n {
		return Lag{Known: true}
	}
	return Lag{Known: true, Behind: t.marks[n-1].position - position, For: now.Sub(t.marks[first].at)}
}

// measure computes how far standbys are behind the host that connections go to,
// if that is a primary, else behind the one that was promoted last.
func (t *trail) measure(now time.Time, found []Status, current Endpoint) {
	var primary *Status
	for i := range found {
		h := &found[i]
		if h.Err != nil || h.Role != RolePrimary || h.Position == 0 {
			continue
		}
		if primary == nil || h.Endpoint == current ||
			primary.Endpoint != current && cmp.Or(cmp.Compare(h.Term, primary.Term), cmp.Compare(h.Position, primary.Position)) > 0 {
			primary = h
		}
	}
	if primary == nil {
		return
	}
	t.note(now, primary)
	for i := range found {
		if h := &found[i]; h.Err == nil && h.Role == RoleStandby && h.Position > 0 {
			h.Lag = t.lag(now, h.Position)
		}
	}
}
