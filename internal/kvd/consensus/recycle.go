package consensus

// recycleMost is the capacity of the largest slice that is reused. Larger ones, from bursts,
// are left to the garbage collector.
const recycleMost = 4096

// Recycle lets the core reuse the memory of the Sends of an earlier Take. The caller keeps none
// of it, but may keep what the fields of the messages refer to.
func (c *Core) Recycle(sends []Send) {
	if c.out.effects.Sends == nil && cap(sends) <= recycleMost {
		clear(sends)
		c.out.effects.Sends = sends[:0]
	}
}
