package kvload

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/kvs"
)

// betweenElections is what a run measures in which the members of a cluster did
// not elect, as those that do not hear of each other for a second do: meanwhile
// they refuse what they are asked.
func betweenElections(t *testing.T, d *Etcd, w Workload) *bench.Sample {
	t.Helper()
	for deadline := time.Now().Add(labtest.Patience); ; {
		var o *Outcome
		err := Fill(t.Context(), d, w.Values())
		if err == nil {
			o, err = Run(t.Context(), Config{Driver: d, Streams: 3, Pendings: 4, Count: 300, Workload: w})
		}
		refused := err == nil && len(o.Sample.Errors) == 1 && o.Sample.Errors[codes.Unavailable.String()] > 0
		if err == nil && !refused {
			return &o.Sample
		}
		if time.Now().After(deadline) {
			t.Fatalf("error %v, outcome %+v", err, o)
		}
		t.Logf("once more: error %v, refused %v", err, refused)
	}
}

func TestEtcdIsDriven(t *testing.T) {
	t.Parallel()
	e := labtest.Etcd(t, lab.EtcdConfig{})
	w := Workload{Keys: 50, WeakPercent: 50, WritePercent: 50, OwnEvery: 4}
	for _, place := range []Place{AtLeader, Spread} {
		s := betweenElections(t, &Etcd{Endpoints: e.Endpoints(), Place: place}, w)
		if s.Ops != 300 || s.Errors != nil || s.Invalid != nil || kvs.Of(s.Parts).Checked == 0 || kvs.Of(s.Parts).Missed != 0 {
			t.Errorf("%s: %d operations, errors %v, invalid %q, checked %d, missed %d", place, s.Ops, s.Errors, s.Invalid, kvs.Of(s.Parts).Checked, kvs.Of(s.Parts).Missed)
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
