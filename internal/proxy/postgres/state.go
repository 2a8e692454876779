package postgres

// A state says what a client's next message waits for, or what happens to it. Units in
// flight are counted separately: in the backend's queue if there is one, by inflight
// otherwise.
//
//	open ── queueClient ──► waiting ── attach ──► open
//	                        waiting ── refused, within extended messages ──► skipping ── Sync ──► open
//	open ── CopyInResponse ──► copying ── the statement's end ──► open
type state uint8

const (
	stateOpen     state = iota // nothing: messages are processed as they come
	stateWaiting               // a backend of its own, in the pool's queue
	stateSkipping              // a Sync: weir has sent the client an error that the server does not know of
	stateCopying               // linked: the server expects CopyData
)

// leave ends a state, if the client is in it.
func (s *state) leave(from state) {
	if *s == from {
		*s = stateOpen
	}
}
