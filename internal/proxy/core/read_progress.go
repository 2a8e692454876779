package core

import "time"

// A ReadProgress tracks how much a client has read of what weir has written to it, while weir
// reads nothing more from the server connection that its answer comes from. The zero value
// is that of a client that has read everything.
type ReadProgress struct {
	taken   uint64        // bytes of output that it had read
	takenAt time.Duration // ... when that was last seen to change

	// While a connection that is not its own is held back:
	began    time.Duration // when the server began with the answer
	lookedAt time.Duration // when it was last looked at
	others   bool          // ... and others waited
	unread   time.Duration // how long others have waited while the client read nothing
	waited   time.Duration // ... in total for this answer
}

// sharedMost is how long a client may hold up others if there is no --client-write-timeout.
const sharedMost = 20 * time.Second

// lookMost bounds how much of the time between two looks counts: the loop looks in each of
// its ticks; if those are late, the machine is so busy that the client may not have run, either.
const lookMost = 200 * time.Millisecond

// Reads notes that the client has read this much, or does not need to read now.
func (r *ReadProgress) Reads(written uint64, now time.Duration) { r.taken, r.takenAt = written, now }

// Holds notes that a connection which is not the client's own is held back from now on, for
// an answer that the server began at began.
func (r *ReadProgress) Holds(began, now time.Duration) {
	if began != r.began {
		r.began, r.waited = began, 0
	}
	r.lookedAt, r.others, r.unread = now, false, 0
}

// Frees notes that it is no longer held back; it may be again for the rest of the answer.
func (r *ReadProgress) Frees(now time.Duration) { r.count(now, r.others) }

// count adds the time since the last look, if others have waited meanwhile.
func (r *ReadProgress) count(now time.Duration, others bool) {
	if others {
		took := min(now-r.lookedAt, lookMost)
		r.unread += took
		r.waited += took
	}
	r.lookedAt, r.others = now, others
}

// Stuck reports whether the client, which has now read written bytes, has read nothing for
// longer than limit.
func (r *ReadProgress) Stuck(written uint64, now, limit time.Duration) bool {
	if written != r.taken {
		r.Reads(written, now)
	}
	return now-r.takenAt > limit
}

// HoldsUp returns why to disconnect a client for which a connection is held back while others
// wait for that connection, or for answers on it: they have waited for a tenth of timeout
// while the client read nothing, or for longer than timeout in total. Until then, and while no
// others wait, it returns "".
func (r *ReadProgress) HoldsUp(written uint64, now, timeout time.Duration, others bool) string {
	if timeout <= 0 {
		timeout = sharedMost
	}
	patience := timeout / 10
	r.count(now, others)
	if written != r.taken || !others {
		r.Reads(written, now)
		r.unread = 0
	}
	switch {
	case r.unread > patience:
		return "it has read nothing of a long answer for " + patience.String() + " while others wait for theirs (a tenth of --client-write-timeout)"
	case others && r.waited > timeout:
		return "it has not read a long answer in " + timeout.String() + " while others wait for theirs (--client-write-timeout)"
	}
	return ""
}
