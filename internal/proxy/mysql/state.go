package mysql

// A state is what a client's next command waits for. The answers to commands in flight are
// counted separately: cur with a backend, inflight without.
//
//	open ── queueClient ──► waiting ── attach ──► open
//	open ── weir's own query on the client's backend ──► asking ── its answer ──► open
//	open ── LOAD DATA LOCAL ──► sending ── the file's end ──► open
//	open ── KILL, COM_CHANGE_USER ──► leaving ── a KILL's end ──► open
//
// weir may still fetch the warnings of a client that is leaving from its backend: then its
// state is leavingAsking.
type state uint8

const (
	stateOpen          state = iota // nothing: it is executed as it comes
	stateWaiting                    // a backend of its own, in the pool's queue; or an answer to another's read, or facts
	stateAsking                     // linked: the answer to a query of weir's own
	stateSending                    // linked: the client sends the file that the server requested
	stateLeaving                    // the end of the client's KILL, or of its COM_CHANGE_USER
	stateLeavingAsking              // both
)

// enter begins a wait.
func (s *state) enter(to state) {
	if both := *s == stateLeaving && to == stateAsking || *s == stateAsking && to == stateLeaving; both {
		to = stateLeavingAsking
	}
	*s = to
}

// leave ends a wait if the client is in it.
func (s *state) leave(from state) {
	switch {
	case *s == from:
		*s = stateOpen
	case *s == stateLeavingAsking && from == stateLeaving:
		*s = stateAsking
	case *s == stateLeavingAsking && from == stateAsking:
		*s = stateLeaving
	}
}

// asking reports whether a query of weir's own is in flight.
func (s state) asking() bool { return s == stateAsking || s == stateLeavingAsking }

// leaving reports whether the client executes no more commands, or none before its KILL has
// ended.
func (s state) leaving() bool { return s == stateLeaving || s == stateLeavingAsking }
