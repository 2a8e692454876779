//go:build !linux

package backupbench

import "context"

// direct is about O_DIRECT, which is Linux's.
func (r *rig) direct(context.Context) error {
	r.Leave("direct I/O: Linux only")
	return nil
}
