package consensus

// recycleMost is how many messages a slice that is used again may hold: what a
// burst needed is given back to the collector.
const recycleMost = 4096

// Recycle lets the core use the memory of an earlier Take's Sends again. The
// caller keeps nothing of it, except for what the messages' fields refer to.
func (c *Core) Recycle(sends []Send) {
	if c.out.effects.Sends == nil && cap(sends) <= recycleMost {
		clear(sends)
		c.out.effects.Sends = sends[:0]
	}
}
