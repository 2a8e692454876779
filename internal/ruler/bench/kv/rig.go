package kvbench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	kvload "github.com/weirdb/weir/internal/ruler/bench/kv/load"
	"github.com/weirdb/weir/internal/ruler/bench/subject/kvs"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// shape is a load.
type shape struct {
	streams, pendings int
	weak, write       float64 // percent
	skew              float64
	place             kvload.Place
	client            Client
	path              Path
	count             int64 // operations per stream; 0: by time
}

// reportShape is the load of reference report 2.
func (r *rig) reportShape() shape {
	return shape{streams: reportStreams, pendings: reportPendings, weak: reportWeak, write: reportWrites, skew: reportSkew, client: r.o.Client, path: r.o.Path}
}

// strongShape is that many clients with one strong operation in flight each, half of them
// writes.
func (r *rig) strongShape(clients int) shape {
	return shape{streams: clients, pendings: 1, write: 50, client: r.o.Client, path: r.o.Path}
}

func (s shape) factors() map[string]string {
	num := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	f := map[string]string{
		"streams": strconv.Itoa(s.streams), "pendings": strconv.Itoa(s.pendings), "weak": num(s.weak), "writes": num(s.write),
		"skew": num(s.skew), "conflicts": "0", "place": s.place.String(), "client": string(s.client), "path": string(s.path),
	}
	if s.count > 0 {
		f["ops"] = strconv.FormatInt(s.count, 10)
	}
	return f
}

// side is one side of an experiment: a load on a cluster.
type side struct {
	name    string
	cluster cluster
	shape   shape
	// writer is set if the experiment compares delays of messages to other replicas, in
	// microseconds.
	writer    bool
	peerDelay int
	// profiled takes a CPU profile of the replicas while the round is measured.
	profiled bool
}

func (s side) factors() map[string]string {
	f := s.cluster.factors()
	maps.Copy(f, s.shape.factors())
	if s.cluster.system != Weir {
		f["client"] = bench.NotApplicable
	}
	if s.writer {
		f["peer_delay"] = strconv.Itoa(s.peerDelay)
	}
	if s.cluster.system != Weir || s.shape.client != Native {
		f["path"] = bench.NotApplicable // a replica's gateway chooses the path
	}
	return f
}

// rig runs at most one cluster at a time, so that no other one competes with the measured one.
type rig struct {
	o      Options
	now    store
	of     cluster
	loaded bool
}

// get returns a cluster like c: a new one or, if the experiment uses the same for all its
// sides, the running one.
func (r *rig) get(ctx context.Context, c cluster, shared bool) (store, error) {
	if r.now != nil && r.of == c && shared {
		return r.now, nil
	}
	if err := r.stop(); err != nil {
		return nil, err
	}
	st, err := r.o.start(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.system, err)
	}
	r.now, r.of, r.loaded = st, c, false
	return st, nil
}

// stopTimeout is how long a cluster may take to stop.
const stopTimeout = 20 * time.Second

func (r *rig) stop() error {
	if r.now == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	err := r.now.stop(ctx)
	r.now = nil
	return err
}

// sample measures a side once.
func (r *rig) sample(ctx context.Context, s side, round int, shared bool) (bench.Sample, error) {
	var none bench.Sample
	st, err := r.get(ctx, s.cluster, shared)
	if err != nil {
		return none, err
	}
	p := r.o.Plan
	driver := st.driver(s.shape)
	load := kvload.Config{
		Driver: driver, Streams: s.shape.streams, Pendings: s.shape.pendings,
		Workload: kvload.Workload{
			WeakPercent: s.shape.weak, WritePercent: s.shape.write, Keys: p.Keys, Skew: s.shape.skew,
			Seed: uint64(round + 1),
		},
		Warmup: p.Warmup, Duration: p.Duration, Count: s.shape.count * int64(s.shape.streams),
		Watch: map[string]func() (measure.Usage, error){bench.RoleServer: st.usage},
	}
	if s.shape.count > 0 {
		load.Duration = 0
	}
	if !r.loaded {
		if err := kvload.Fill(ctx, driver, load.Workload.Values()); err != nil {
			return none, err
		}
		r.loaded = true
	}
	if s.writer {
		if err := setPeerDelay(ctx, st, time.Duration(s.peerDelay)*time.Microsecond); err != nil {
			return none, err
		}
	}
	before, err := st.counters(ctx)
	if err != nil {
		return none, err
	}
	took := func() error { return nil }
	if s.profiled {
		load.Duration = max(load.Duration, p.Profile)
		took = r.profile(ctx, st, s, load.Warmup, load.Duration)
	}
	out, err := kvload.Run(ctx, load)
	if err := errors.Join(err, took()); err != nil {
		return none, err
	}
	after, err := st.counters(ctx)
	if err != nil {
		return none, err
	}
	kv := kvs.Of(out.Sample.Parts)
	kv.Settings = st.describe().Settings
	if kv.RSSBytes, err = st.memory(); err != nil {
		return none, err
	}
	if moved := since(after, before); len(moved) > 0 {
		kv.Counters = moved
		convertCounters(&out.Sample, moved, out.TotalOps)
	}
	return out.Sample, nil
}

func setPeerDelay(ctx context.Context, st store, d time.Duration) error {
	can, ok := st.(delayed)
	if !ok {
		return fmt.Errorf("%s cannot delay messages between its replicas", st.describe().Name)
	}
	return can.setPeerDelay(ctx, d)
}

// profile takes a CPU profile of the replicas, starting after the warm-up. It returns a
// function that waits for it. If there is no profile, the report says so, and the round stays
// valid.
func (r *rig) profile(ctx context.Context, st store, s side, warmup, d time.Duration) func() error {
	can, ok := st.(profilable)
	if !ok {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	go func() {
		select {
		case <-ctx.Done():
			done <- ctx.Err()
			return
		case <-time.After(warmup):
		}
		p, err := can.profile(ctx, d)
		if err == nil {
			_, err = suite.SaveProfile(r.o.Out, s.name, bench.RoleReplica, p)
		}
		done <- err
	}()
	return func() error {
		err := <-done
		if err != nil && ctx.Err() == nil {
			r.o.Say("no CPU profile of %s: %v", s.name, err)
			return nil
		}
		return err
	}
}

// convertCounters converts weir kv's counters to the figures that other systems have, too: operations per
// consensus round, and flushes and writes per replica, averaged over all.
func convertCounters(s *bench.Sample, counted map[string]float64, ops int64) {
	if rounds := counted["rounds_total"]; rounds > 0 {
		s.Groups = &bench.Groups{Flushes: int64(rounds), Items: int64(counted["operations_total"])}
	}
	if flushes := counted["fsync_seconds_count"]; flushes > 0 {
		n := float64(max(1, len(kvs.Of(s.Parts).RSSBytes)))
		s.Server = &bench.ServerCounters{
			Ops: ops, Fsyncs: int64(flushes / n), LogBytes: int64(counted["log_bytes_total"] / n), LogRecords: int64(counted["log_records_total"] / n),
		}
	}
}

// experiment makes an experiment of sides: factors that they share become those of the
// experiment, the others those of each side.
func (r *rig) experiment(group, name, title string, rounds int, sides ...side) bench.Experiment {
	all := make([]map[string]string, len(sides))
	for i, s := range sides {
		all[i] = s.factors()
	}
	common := maps.Clone(all[0])
	for _, f := range all[1:] {
		maps.DeleteFunc(common, func(k, v string) bool { return f[k] != v })
	}
	shared := !slices.ContainsFunc(sides, func(s side) bool { return s.cluster != sides[0].cluster || s.shape.count > 0 })
	e := bench.Experiment{Description: bench.Description{Name: name, Title: title, Rounds: rounds, Loop: "closed"}}
	for i, s := range sides {
		own := maps.Clone(all[i])
		maps.DeleteFunc(own, func(k, _ string) bool { _, same := common[k]; return same })
		e.Sides = append(e.Sides, bench.Side{
			Name: s.name, Factors: own,
			Run: func(ctx context.Context, round int) (bench.Sample, error) { return r.sample(ctx, s, round, shared) },
		})
	}
	e.Factors = common
	e.Factors["scenario"], e.Factors["keys"] = group, strconv.Itoa(r.o.Plan.Keys)
	e.Factors["seconds"] = r.o.Plan.Duration.String()
	return e
}

// do runs an experiment and keeps its samples and result.
func (r *run) do(ctx context.Context, e bench.Experiment) (*bench.Result, error) {
	env := measure.ReadEnvironment()
	env.Durability = cmp.Or(e.Factors["durability"], "as each case says: disk (flushed before it is acknowledged) or memory")
	env.Servers = slices.Clone(r.o.servers)
	flushDir := r.o.Out
	if r.o.Plan.Hasty || e.Factors["durability"] == inMemory {
		flushDir = "" // neither the disk nor calibrations matter
	}
	return r.Measure(ctx, e, env, flushDir)
}

// measure is do without the result.
func (r *run) measure(ctx context.Context, e bench.Experiment) error {
	_, err := r.do(ctx, e)
	return err
}
