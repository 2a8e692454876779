package core

import (
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
)

// MostLost bounds how many connections a statement or a waiting client loses, one after
// the other, before anything was done on them: what is to be done, or the settings for
// it, may be what ends them.
const MostLost = 3

// TerminatedAfter bounds for how long an error by which the server ends a connection is
// taken for a shutdown. An administrator's pg_terminate_backend or KILL sends the same: what
// has run for longer may be what that was meant for.
const TerminatedAfter = time.Second

// Losses counts connections that were lost before anything was done on them. Those that
// were there at the first loss do not count: a server that stops ends all of them, one
// after the other.
type Losses struct {
	count int
	since time.Duration // the first of them
}

// Again reports whether another connection may be tried, since one is lost now that was
// opened at born.
func (ls *Losses) Again(now, born time.Duration) bool {
	if ls.count >= MostLost {
		return false
	}
	if ls.since == 0 {
		ls.since = now
	}
	if born > ls.since {
		ls.count++
	}
	return true
}

// SetLosses are the losses of those that wait for a connection in the same settings.
type SetLosses map[*session.Set]Losses

// Again is Losses.Again for those that wait in set. They are forgotten when it reports false.
func (sl *SetLosses) Again(set *session.Set, now, born time.Duration) bool {
	lost := (*sl)[set]
	if !lost.Again(now, born) {
		delete(*sl, set)
		return false
	}
	if *sl == nil {
		*sl = make(SetLosses)
	}
	(*sl)[set] = lost
	return true
}

// MoveElsewhere moves those of the units under way on a connection that is lost that can
// run on another, in the order of each client, and returns the others. of returns a unit's
// client; false means that the unit stays and does not hold up later ones. remains reports
// whether a unit can run again; first is the one that the server was at work on. move
// runs it elsewhere, behind an earlier one of its client's that is still to be answered
// if there is one. What was sent behind a unit that moves, moves with it.
func MoveElsewhere[C comparable, U any](
	units []U, of func(u U) (C, bool), remains func(u U, first bool) bool, move func(u U, behind bool),
) (left []U) {
	waiting, moved := map[C]bool{}, map[C]bool{}
	for i, u := range units {
		c, ok := of(u)
		switch {
		case !ok:
			left = append(left, u)
			continue
		case moved[c]:
		case !remains(u, i == 0):
			waiting[c] = true
			left = append(left, u)
			continue
		}
		moved[c] = true
		move(u, waiting[c])
		waiting[c] = true
	}
	return left
}
