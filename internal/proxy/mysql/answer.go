package mysql

import (
	"errors"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file is the way back: what a backend says, given to whom it answers.

const (
	// maxClientOut is how much of a result waits in weir for a client that
	// owns its backend, before weir stops reading from that backend.
	maxClientOut = 1 << 20
	// maxSharedOut is how much waits for a client whose backend is shared:
	// there, to stop reading would hold up others, so the client is
	// disconnected.
	maxSharedOut = 64 << 20
)

// OnData routes what the server sent to the clients that it answers.
func (b *backend) OnData(p []byte) int {
	for rest := p; len(rest) > 0 && !b.s.Closed; {
		u := b.Head()
		if u == nil {
			b.unasked(rest)
			return len(p)
		}
		if !b.walking {
			b.answer.Reset(u.cmd, b.caps)
			if u.seq > 1 {
				b.answer.Resume(u.seq)
			}
			b.walking = true
		}
		n, event, err := b.answer.Feed(rest)
		if err != nil {
			b.fail(err)
			return len(p)
		}
		if event == mywire.EventDone && b.answer.ErrorCode() != 0 && b.runsAgain(u) {
			u.retry, b.hold = true, b.hold[:0]
		} else {
			b.forward(u, rest[:n], event)
		}
		rest = rest[n:]
		switch event {
		case mywire.EventResult:
			b.resultEnded(u, false)
		case mywire.EventDone:
			b.walking = false
			b.resultEnded(u, true)
			b.ended(u)
		case mywire.EventInfile:
			if u.c == nil || u.c != b.owner {
				b.fail(errors.New("server asks for a file in the answer to a shared statement"))
				return len(p)
			}
			u.c.sendFile()
		case mywire.EventAuth:
			b.fail(errors.New("server asks for authentication in the middle of a session"))
			return len(p)
		}
	}
	return len(p)
}

// unasked is called with what the server says by itself: before it closes a
// connection it says why.
func (b *backend) unasked(p []byte) {
	err := errors.New("server sent what nothing asked for")
	if n, _, ok := mywire.Peek(p); ok && len(p) >= mywire.HeaderLen+n {
		if e, perr := mywire.ParseError(p[mywire.HeaderLen : mywire.HeaderLen+n]); perr == nil {
			err = e
		}
	}
	b.s.Close(err)
}

// forward gives the bytes of an answer to the client that it answers. The last bytes are
// held back while they may be part of a packet that ends a result: that one may
// have to be put differently.
func (b *backend) forward(u *unit, p []byte, event mywire.Event) {
	held := 0
	if event == mywire.EventMore {
		held = b.answer.Held()
	}
	if held > len(p) || (held == len(p) && held > 0) {
		b.hold = append(b.hold, p...)
		return
	}
	if len(b.hold) > 0 {
		b.emit(u, b.hold)
		b.hold = b.hold[:0]
	}
	b.emit(u, p[:len(p)-held])
	b.hold = append(b.hold, p[len(p)-held:]...)
}

// emit gives whole packets, or parts of rows, to the client that the unit answers.
func (b *backend) emit(u *unit, p []byte) {
	if len(p) == 0 {
		return
	}
	u.bytes += len(p)
	if u.park || u.hold {
		u.resp = append(u.resp, p...)
		if u.preempted && b.Cancels > 0 && len(u.resp) > maxClientOut {
			b.s.Throttle(true) // until the KILL has been answered: see signal
		}
		return
	}
	c := u.c
	if c == nil || c.s.Closed {
		return
	}
	u.wrote = true
	s := c.s
	s.Out = append(s.OutBuf(), p...)
	s.Touch()
	switch {
	case b.owner == c && s.Pending() > maxClientOut:
		s.HoldBack(b.s)
	case b.Mode == core.ModeOwn && u.read && b.Depth() == 1 && s.Pending() > maxClientOut:
		c.apartOn = b
		s.HoldBack(b.s)
	case b.owner == nil && s.Pending() > maxSharedOut:
		c.kick("it reads its answers too slowly")
	}
}

// resultEnded takes note of how a result ended, and puts its last packet as the
// client expects it.
func (b *backend) resultEnded(u *unit, last bool) {
	a := &b.answer
	if code := a.ErrorCode(); last && code != 0 {
		u.failed, u.code = true, code
		if u.kind != unitClient || u.park || b.owner == u.c {
			u.err = a.Err()
		}
		return
	}
	ok := a.OK()
	changed := ok.Status&mywire.StatusSessionState != 0
	switch {
	case changed && len(ok.State) > 0:
		b.track(u, ok.State)
	case changed && !b.caps.Has(mywire.CapDeprecateEOF):
		b.untold(u)
	}
	if c := u.c; c != nil && len(c.owed) > 0 && u.tellsStatus() {
		ok.State, c.owed = append(c.owed, ok.State...), nil
		ok.Status |= mywire.StatusSessionState
		changed = true
	}
	if changed {
		b.reword(u, &ok) // an EOF has the flag alone
	}
	ok.Info, ok.State = nil, nil
	u.ok, u.rows = ok, a.Rows()
}

// reword puts the packet that ended a result, which has just been passed on, as
// the client would have got it directly: without session state if it did not ask
// for that, else with what servers tell of by default.
func (b *backend) reword(u *unit, ok *mywire.OK) {
	if u.kind != unitClient || u.c == nil || u.c.s.Closed {
		return
	}
	buf := &u.c.s.Out
	if u.park || u.hold {
		buf = &u.resp
	}
	tail := b.answer.Tail()
	if tail > len(*buf) {
		return // the client is closing
	}
	at := len(*buf) - tail
	seq, first := (*buf)[at+3], (*buf)[at+mywire.HeaderLen]
	out := *ok
	out.State = u.c.stateFor(ok.State, u.park)
	if mywire.IsOK((*buf)[at+mywire.HeaderLen:]) && first == 0 {
		*buf = mywire.AppendOK((*buf)[:at], seq, u.c.caps, &out)
	} else {
		*buf = mywire.AppendEnd((*buf)[:at], seq, u.c.caps, &out)
	}
}
