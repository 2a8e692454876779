package labtest

import (
	"context"
	"testing"

	"github.com/weirdb/weir/internal/lab"
)

// Etcd starts an etcd cluster for the duration of tb, which takes about 1.5 s.
func Etcd(tb testing.TB, cfg lab.EtcdConfig) *lab.Etcd {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	e, err := lab.StartEtcd(ctx, cfg)
	check(tb, err)
	tb.Cleanup(func() { stop(tb, e.Stop) })
	return e
}

// RequireEtcd skips tb if etcd is not installed, for tests that start their servers themselves.
func RequireEtcd(tb testing.TB) {
	tb.Helper()
	_, _, err := lab.FindEtcd(tb.Context(), "")
	check(tb, err)
}
