package cache

// A Client is one session's side of a Cache: the flight that its statement ends, the flight
// that it waits for, and when it last wrote. It belongs to one goroutine.
type Client struct {
	c *Cache
	s Session

	wrote uint64 // Mark at the last write

	lead   *Flight // the flight that the unit in flight ends
	next   *Flight // the same until that unit exists: it may wait for a connection
	follow *Flight // the flight that the session waits for
	// landed is the flight that the session has waited for, got its answer. Both are used
	// when the session looks at the waiting statement again.
	landed *Flight
	got    *Answer
}

// A Session is what a Client needs from its session.
type Session interface {
	// Post calls f on the session's goroutine.
	Post(f func())
	// Await stops the session's input until Resume, after which the session looks again at the
	// statement that waits.
	Await()
	Resume()
	// Gone reports whether the session has ended.
	Gone() bool
}

// NewClient returns the Client of a session that has written nothing.
func NewClient(c *Cache, s Session) Client { return Client{c: c, s: s} }

// Ask asks the cache, as Cache.Ask does, with the client's own Mark. There are three
// differences. With Follow, the session has already been told to wait. With Shared, the
// result is the answer that it has waited for. With Direct, Why is 0 if the statement runs
// without a notice to the client: the client already has a flight for it, or the flight that
// it has waited for has failed, and errors are not shared.
func (cl *Client) Ask(q *Query) (Role, *Answer, *Flight) {
	landed, got := cl.landed, cl.got
	cl.Forget()
	if cl.lead != nil {
		if cl.lead.Is(q.Key) {
			return Direct, nil, nil // it waited for a connection, and is looked at again
		}
		cl.Leave((*Flight).Leave)
	}
	switch {
	case len(q.Key) > MaxKey:
		q.Why = SkipKey
		q.Database.Skipped(SkipKey)
		return Direct, nil, nil
	case landed == nil || !landed.Is(q.Key):
	case got == nil:
		return Direct, nil, nil
	default:
		return Shared, got, nil
	}
	q.After = cl.wrote
	for {
		role, a, f := cl.c.Ask(q)
		switch {
		case role == Lead:
			cl.lead, cl.next = f, f
		case role == Follow && !cl.wait(f):
			continue // it has ended in between
		}
		return role, a, f
	}
}

// wait makes the session wait for a flight. It returns false if the flight has ended.
func (cl *Client) wait(f *Flight) bool {
	if !f.Wait(func(how Outcome, a *Answer) {
		cl.s.Post(func() { cl.woken(f, how, a) })
	}) {
		return false
	}
	cl.follow = f
	cl.s.Await()
	return true
}

// woken is called when the flight has ended.
func (cl *Client) woken(f *Flight, how Outcome, a *Answer) {
	if cl.follow != f || cl.s.Gone() {
		return // the statement was cancelled, or has waited too long
	}
	cl.follow = nil
	if how != Abandoned {
		cl.landed = f
	}
	if how == Landed {
		cl.got = a
	}
	cl.s.Resume()
}

// Waits reports whether the session waits for a flight.
func (cl *Client) Waits() bool { return cl.follow != nil }

// GiveUp ends the wait for a flight, if there is one. The session runs its statement
// itself.
func (cl *Client) GiveUp() {
	if cl.follow != nil {
		cl.woken(cl.follow, Failed, nil)
	}
}

// Cancel ends the wait for a flight of a statement that the session does not run.
func (cl *Client) Cancel() { cl.follow = nil }

// Forget drops the answer that the session has waited for.
func (cl *Client) Forget() { cl.landed, cl.got = nil, nil }

// Wrote notes that the session has written something, or may have. From then on it gets no
// answer that was fetched before.
func (cl *Client) Wrote() { cl.wrote = cl.c.Mark() }

// Leads reports whether there is a flight that an existing unit of the session ends.
func (cl *Client) Leads() bool { return cl.lead != nil && cl.next == nil }

// Made returns the flight of a unit that is now created; nil if it has none to end.
func (cl *Client) Made() *Flight {
	f := cl.next
	cl.next = nil
	return f
}

// Ended notes that the unit with the session's flight ends it.
func (cl *Client) Ended() { cl.lead = nil }

// Leave ends the session's part in flights, because its statement is gone. how
// ends the flight that it leads.
func (cl *Client) Leave(how func(*Flight)) {
	cl.follow, cl.next = nil, nil
	if f := cl.lead; f != nil {
		cl.lead = nil
		how(f)
	}
}
