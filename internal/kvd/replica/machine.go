package replica

import "github.com/weirdb/weir/internal/kvd/state"

// machine is the store as the core drives it.
type machine struct{ *state.Store }

// Advance implements consensus.Machine.
func (m machine) Advance(revision uint64, now int64) {
	if due := m.Due(); due != 0 && due <= now {
		m.Apply(revision, now, nil) // nothing but the clock
	}
}
