package core

import "time"

// Reading is how far a client has read what weir has written to it, while the server's
// connection that its answer comes from is held back until it has. The zero value is that of
// one that has read everything.
type Reading struct {
	taken   uint64        // bytes of its output that it had taken
	takenAt time.Duration // ... when that was last looked at and had changed

	// While a connection that is not its own is held back:
	began    time.Duration // when the server began with the answer
	lookedAt time.Duration // when that was looked at last
	others   bool          // ... and others waited
	unread   time.Duration // for how long they have, while it has taken nothing
	waited   time.Duration // ... for all of the answer
}

// sharedMost is how long others are held up for a client at most, without
// --client-write-timeout.
const sharedMost = 20 * time.Second

// lookMost is how much of the time between two looks counts: the loop looks in each of its
// ticks, unless the machine is so busy that the client may not have come to read, either.
const lookMost = 200 * time.Millisecond

// Reads notes that the client has taken so much of its output by now, or need not have.
func (r *Reading) Reads(written uint64, now time.Duration) { r.taken, r.takenAt = written, now }

// Holds notes that a connection which is not the client's own is held back from now on, for
// an answer with which the server began at began.
func (r *Reading) Holds(began, now time.Duration) {
	if began != r.began {
		r.began, r.waited = began, 0
	}
	r.lookedAt, r.others, r.unread = now, false, 0
}

// Frees notes that it is held back no more; it may be again for the rest of the answer.
func (r *Reading) Frees(now time.Duration) { r.count(now, r.others) }

// count counts the time since the last look, if others have waited meanwhile.
func (r *Reading) count(now time.Duration, others bool) {
	if others {
		took := min(now-r.lookedAt, lookMost)
		r.unread += took
		r.waited += took
	}
	r.lookedAt, r.others = now, others
}

// Stuck reports whether the client, which has taken so much of its output, has taken none
// for longer than limit. Otherwise it takes note of that.
func (r *Reading) Stuck(written uint64, now, limit time.Duration) bool {
	if written != r.taken {
		r.Reads(written, now)
	}
	return now-r.takenAt > limit
}

// HoldsUp returns why to disconnect a client for which a connection is held back that others
// wait for, or for answers on it: they have waited for a tenth of timeout while it has read
// nothing, or for longer than timeout in all for its answer. Until then, and while no others
// wait, it returns "".
func (r *Reading) HoldsUp(written uint64, now, timeout time.Duration, others bool) string {
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
