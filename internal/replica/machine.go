package replica

import "github.com/weirdb/weir/internal/kvstate"

// machine is the store as the core drives it.
type machine struct{ *kvstate.Store }

// Advance moves the store's clock, and lets expire what is due.
func (m machine) Advance(now int64) {
	if due := m.Due(); due != 0 && due <= now {
		m.Apply(m.Revision(), now, nil)
	}
}
