package consensus

import "math"

// Rescue applies all entries of this replica's log, whether or not it knows that they are
// committed. It is for the disk that is left when a majority is lost. All acknowledged entries
// that are on this disk are applied, and perhaps unacknowledged ones. Rescue returns the index
// of the last entry. The core must not be used afterwards.
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
