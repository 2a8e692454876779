package postgres

// A state is what a client's next message waits for, or what becomes of it. The answers
// to units under way are counted besides: in the backend's queue with one, by inflight
// without.
//
//	open ── queueClient ──► waiting ── attach ──► open
//	                        waiting ── refused, within extended messages ──► skipping ── Sync ──► open
//	open ── CopyInResponse ──► copying ── the statement's end ──► open
type state uint8

const (
	stateOpen     state = iota // nothing: it is taken as it comes
	stateWaiting               // a backend of its own, in the pool's queue
	stateSkipping              // Sync: the client was told of an error that the server does not know of
	stateCopying               // linked: the server takes CopyData
)

// leave ends a state, if the client is in it.
func (s *state) leave(from state) {
	if *s == from {
		*s = stateOpen
	}
}
