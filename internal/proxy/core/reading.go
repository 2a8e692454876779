package core

import "time"

// Reading is how far a client has read what weir has written to it, while the server's
// connection that its answer comes from is held back until it has. The zero value is that of
// one that has read everything.
type Reading struct {
	taken    uint64        // bytes of its output that it had taken
	takenAt  time.Duration // ... when that was last looked at and had changed
	heldAt   time.Duration // since when a connection is held back that is not its own
	lookedAt time.Duration // when that was looked at last
	began    time.Duration // when the server began with the answer for which it is
	before   time.Duration // how long it was for the same answer before heldAt
}

// sharedMost is how long others are held up for a client at most, without
// --client-write-timeout.
const sharedMost = 20 * time.Second

// Reads notes that the client has taken so much of its output by now, or need not have.
func (r *Reading) Reads(written uint64, now time.Duration) { r.taken, r.takenAt = written, now }

// Holds notes that a connection which is not the client's own is held back from now on, for
// an answer with which the server began at began.
func (r *Reading) Holds(began, now time.Duration) {
	if began != r.began {
		r.began, r.before = began, 0
	}
	r.heldAt = now
}

// Frees notes that it is held back no more; it may be again for the rest of the answer.
func (r *Reading) Frees(now time.Duration) { r.before += now - r.heldAt }

// Stuck reports whether the client, which has taken so much of its output, has taken none
// for longer than limit. Otherwise it takes note of that.
func (r *Reading) Stuck(written uint64, now, limit time.Duration) bool {
	if written != r.taken {
		r.Reads(written, now)
	}
	return now-r.takenAt > limit
}

// HoldsUp returns why to disconnect a client for which others are held up whose answers come
// behind its own: it has read nothing for a tenth of timeout, or its answer has held them up
// for longer than timeout in all.
// Until then it returns "".
func (r *Reading) HoldsUp(written uint64, now, timeout time.Duration) string {
	if timeout <= 0 {
		timeout = sharedMost
	}
	patience := timeout / 10
	if written != r.taken || now-r.lookedAt > patience/2 { // or nobody has looked
		r.Reads(written, now)
	}
	r.lookedAt = now
	switch {
	case now-max(r.takenAt, r.heldAt) > patience:
		return "it has read nothing of a long answer for " + patience.String() + " while others wait behind it for theirs (a tenth of --client-write-timeout)"
	case r.before+now-r.heldAt > timeout:
		return "it has not read a long answer in " + timeout.String() + " while others wait behind it for theirs (--client-write-timeout)"
	}
	return ""
}
