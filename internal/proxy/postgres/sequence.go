package postgres

// This file tracks whose sequence values a backend holds: currval and lastval return them.

// dropSequences makes sure that currval and lastval cannot return what another
// session left on the backend that the client has got. If the client's own last
// value is not here either, the server will report that it is not defined, which is
// an error but never a wrong number; from then on weir keeps this pool's writing
// clients on their backends.
func (c *client) dropSequences() {
	b := c.link
	if !b.mixed && (b.lastWriter == nil || b.lastWriter == c) {
		return
	}
	b.lastWriter, b.mixed = nil, false
	b.ask("DISCARD SEQUENCES", func(u *unit) { b.Doomed = b.Doomed || u.err != nil })
}

// forgetSequences applies DISCARD SEQUENCES, which b has executed, to the client's
// other backends: they execute it before they are used again.
func (c *client) forgetSequences(done *backend) {
	for _, b := range c.p.Backends {
		if b != done && b.lastWriter == c {
			b.lastWriter, b.mixed = nil, true
		}
	}
}
