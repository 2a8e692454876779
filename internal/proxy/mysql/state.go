package mysql

// A state is what a client's next command waits for. The answers to commands under way
// are counted besides: cur with a backend, inflight without.
//
//	open ── queueClient ──► waiting ── attach ──► open
//	open ── a question of weir's own to the client's backend ──► asking ── its answer ──► open
//	open ── LOAD DATA LOCAL ──► sending ── the file's end ──► open
//	open ── KILL, COM_CHANGE_USER ──► leaving ── a KILL's end ──► open
//
// The warnings of a client that leaves may still be fetched from its backend: then it is
// leavingAsking.
type state uint8

const (
	stateOpen          state = iota // nothing: it is taken as it comes
	stateWaiting                    // a backend of its own, in the pool's queue
	stateAsking                     // linked: the answer to a question of weir's own
	stateSending                    // linked: the client sends the file that the server asked for
	stateLeaving                    // the end of the client's KILL, or of its login as another user
	stateLeavingAsking              // both
)

// enter begins to wait.
func (s *state) enter(to state) {
	if both := *s == stateLeaving && to == stateAsking || *s == stateAsking && to == stateLeaving; both {
		to = stateLeavingAsking
	}
	*s = to
}

// leave ends a wait, if it is what the client waits for.
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

// asking reports whether weir's own question is to be answered.
func (s state) asking() bool { return s == stateAsking || s == stateLeavingAsking }

// leaving reports whether the client takes no commands any more, or not before its KILL has ended.
func (s state) leaving() bool { return s == stateLeaving || s == stateLeavingAsking }
