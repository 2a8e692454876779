package consensus

import "math"

// Rescue carries out all entries of this replica's log, whether it knows that they are
// committed or not: for the disk that is left when those of a majority are lost. What was
// acknowledged and is on this disk is among them; so may be what was not. It returns the
// last entry. The core is of no other use afterwards.
func (c *Core) Rescue() (last uint64, err error) {
	c.engine.drain()
	for c.out.effects.Fatal == nil && c.state.applied < c.engine.log.lastIndex() {
		entries, err := c.engine.log.Entries(c.state.applied+1, c.engine.log.lastIndex()+1, math.MaxUint64)
		if err != nil {
			return 0, err
		}
		for _, e := range entries {
			if c.state.apply(e); c.out.effects.Fatal != nil {
				break
			}
		}
	}
	return c.state.applied, c.out.effects.Fatal
}
