package labtest

import (
	"context"
	"testing"

	"github.com/weirdb/weir/internal/lab"
)

// KV starts a cluster of weir kv for the duration of tb, which takes about half a second.
func KV(tb testing.TB, cfg lab.KVConfig) *lab.KV {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	kv, err := lab.StartKV(ctx, cfg)
	check(tb, err)
	tb.Cleanup(func() { stop(tb, kv.Stop) })
	return kv
}
