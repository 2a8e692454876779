package kvload

import (
	"context"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

func TestEtcdIsDriven(t *testing.T) {
	t.Parallel()
	e := labtest.Etcd(t, lab.EtcdConfig{})
	w := Workload{Keys: 50, WeakPercent: 50, WritePercent: 50, OwnEvery: 4}
	for _, place := range []Place{AtLeader, Spread} {
		d := &Etcd{Endpoints: e.Endpoints(), Place: place}
		if err := d.Load(t.Context(), w.Values()); err != nil {
			t.Fatal(err)
		}
		o, err := Run(t.Context(), Config{Driver: d, Streams: 3, Pendings: 4, Count: 300, Workload: w})
		if err != nil {
			t.Fatal(err)
		}
		s := o.Sample
		if s.Ops != 300 || s.Errors != nil || s.Invalid != nil || s.KV.Checked == 0 || s.KV.Missed != 0 {
			t.Errorf("%s: %d operations, errors %v, invalid %q, checked %d, missed %d", place, s.Ops, s.Errors, s.Invalid, s.KV.Checked, s.KV.Missed)
		}
	}
	// Without a quorum nothing is answered, and the run ends all the same.
	for _, n := range e.Nodes()[1:] {
		n.Pause()
		defer n.Resume()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := Run(ctx, Config{Driver: &Etcd{Endpoints: e.Endpoints()[:1], Place: Spread}, Duration: time.Minute, Workload: w}); err == nil {
		t.Error("a run without a quorum ended well")
	}
}
