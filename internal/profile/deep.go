package profile

import (
	"context"

	"github.com/weirdb/weir/internal/bench"
)

// deepWatch placeholder
type deepWatch struct{}

func (t *Target) startDeep(ctx context.Context) *deepWatch { return nil }
func (d *deepWatch) windowOpens()                          {}
func (d *deepWatch) windowCloses()                         {}
func (d *deepWatch) report(ops int64) ([]bench.ServerPart, []string) {
	return nil, nil
}
func (d *deepWatch) close() error { return nil }
