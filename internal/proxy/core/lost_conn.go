package core

import (
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
)

// MostLost bounds how many connections in a row a statement or a waiting client may lose
// before anything was executed on them: the statement, or the settings for it, may be the
// cause.
const MostLost = 3

// TerminatedAfter is how long an error by which the server ends a connection counts as a
// shutdown. pg_terminate_backend and KILL send the same error, and an administrator may have
// aimed them at a statement that has run for longer.
const TerminatedAfter = time.Second

// Losses counts connections that were lost before anything was executed on them. Connections
// that existed at the first loss do not count: a server that stops ends all of them, one
// after the other.
type Losses struct {
	count int
	since time.Duration // of the first one
}

// Again counts the loss of a connection that was opened at born, and reports whether another
// one may be tried.
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

// SetLosses are the losses of those that wait for a connection, by their settings.
type SetLosses map[*session.Set]Losses

// Again is Losses.Again for set. The entry is removed when it returns false.
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

// MoveElsewhere takes the units in flight on a lost connection, moves those that can run on
// another connection, in the order of each client, and returns the others. of returns a
// unit's client; false means that the unit stays and does not hold up later ones. remains
// reports whether a unit can run again; first is the unit that the server was executing. move
// runs it elsewhere, behind an earlier unit of the same client that is still to be answered,
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
