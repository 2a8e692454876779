package consensus

import "math"

// Rescue carries out all entries of this replica's log, whether it knows that they are
// committed or not: for the disk that is left when those of a majority are lost. What was
// acknowledged and is on this disk is among them; so may be what was not. It returns the
// last entry. The core is of no other use afterwards.
func (c *Core) Rescue() (last uint64, err error) {
	c.drain()
	for c.out.Fatal == nil && c.applied < c.log.lastIndex() {
		entries, err := c.log.Entries(c.applied+1, c.log.lastIndex()+1, math.MaxUint64)
		if err != nil {
			return 0, err
		}
		for _, e := range entries {
			if c.apply(e); c.out.Fatal != nil {
				break
			}
		}
	}
	return c.applied, c.out.Fatal
}
