package outboxbench

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/weirdb/weir/internal/ruler/bench"
	outboxload "github.com/weirdb/weir/internal/ruler/bench/outbox/load"
	"github.com/weirdb/weir/internal/ruler/report"
	"github.com/weirdb/weir/outbox"
)

// experiment starts an experiment of a group.
func (s *run) experiment(group, name, title string, rounds int, factors map[string]string) bench.Experiment {
	all := map[string]string{
		FactorPhase: group, "engine": string(s.o.Engine), "durability": s.rig.durability(), "fsync_latency": s.o.FsyncLatency.String(),
	}
	maps.Copy(all, factors)
	return bench.Experiment{Description: bench.Description{
		Name: name, Title: title, Rounds: rounds, Warmup: s.o.Plan.Warmup, Loop: "closed", Factors: all,
	}}
}

// backlog starts an experiment in which backlogs are consumed.
func (s *run) backlog(group, name, title string, rounds int, records int64, payload int) bench.Experiment {
	return s.experiment(group, name, title, rounds, map[string]string{
		"records": strconv.FormatInt(records, 10), "payload": strconv.Itoa(payload),
	})
}

// has reports whether the engine has a claim mode.
func (s *run) has(claim outbox.ClaimMode) bool {
	return slices.Contains(engine(s.o.Engine).claims(), claim)
}

// screen searches for the best combination of workers and batch.
func (s *run) screen(ctx context.Context) error {
	p := s.o.Plan
	e := s.backlog(Screen, "screen", "A backlog by workers x batch of each claim", p.Rounds, p.Records, payloadBytes)
	grid := make(map[string]Combination)
	add := func(claim outbox.ClaimMode, c Combination) {
		name := sideName(claim, c)
		if claim == outbox.SkipLocked {
			grid[name] = c
		}
		e.Sides = append(e.Sides, s.consumeSide(name, s.subject(claim, c), outboxload.ConsumeConfig{Records: p.Records, Payload: payloadBytes}))
	}
	if s.has(outbox.SkipLocked) {
		for _, w := range p.Workers {
			for _, b := range p.Batches {
				add(outbox.SkipLocked, Combination{w, b})
			}
		}
	} else {
		s.Leave("%s has no SKIP LOCKED: the customary design cannot be run on it", s.o.Engine.Title())
	}
	for _, claim := range []outbox.ClaimMode{outbox.Poll, outbox.Log} {
		if !s.has(claim) {
			s.Leave("%s has no log to follow", s.o.Engine.Title())
			continue
		}
		add(claim, Combination{})
		for _, w := range p.Publishers {
			for _, b := range p.OwnBatches {
				add(claim, Combination{w, b})
			}
		}
	}
	res, err := s.measure(ctx, e)
	if err != nil {
		return err
	}
	s.best = best(res, grid, 2)
	return nil
}

// best returns the n combinations with the highest rates among those in a grid, by the names of
// their cases.
func best(r *bench.Result, grid map[string]Combination, n int) []Combination {
	var cases []*bench.Case
	for _, c := range r.Cases {
		if _, ok := grid[c.Name]; ok {
			cases = append(cases, c)
		}
	}
	slices.SortStableFunc(cases, func(a, b *bench.Case) int {
		return cmp.Compare(b.Summary["rate"].Median, a.Summary["rate"].Median)
	})
	var out []Combination
	for _, c := range cases[:min(n, len(cases))] {
		out = append(out, grid[c.Name])
	}
	return out
}

// rivals are the designs to compare: the customary design with its n best combinations, then
// weir's own with their defaults.
func (s *run) rivals(n int) (names []string, subjects []*subject) {
	add := func(claim outbox.ClaimMode, c Combination) {
		names, subjects = append(names, sideName(claim, c)), append(subjects, s.subject(claim, c))
	}
	if s.has(outbox.SkipLocked) {
		for _, c := range s.best[:min(n, len(s.best))] {
			add(outbox.SkipLocked, c)
		}
	}
	for _, claim := range []outbox.ClaimMode{outbox.Poll, outbox.Log} {
		if !s.has(claim) {
			continue
		}
		add(claim, Combination{})
		if s.o.Floor && claim == outbox.Log {
			sub := s.subject(claim, Combination{})
			sub.floor = true
			names, subjects = append(names, floorSide(claim)), append(subjects, sub)
		}
	}
	return names, subjects
}

// consumedByRivals lets the n best combinations and weir's claim modes consume a backlog.
func (s *run) consumedByRivals(ctx context.Context, e bench.Experiment, n int, c outboxload.ConsumeConfig) error {
	names, subjects := s.rivals(n)
	for i, name := range names {
		e.Sides = append(e.Sides, s.consumeSide(name, subjects[i], c))
	}
	_, err := s.measure(ctx, e)
	return err
}

// focus compares the two best combinations with weir's own claim modes.
func (s *run) focus(ctx context.Context) error {
	p := s.o.Plan
	e := s.backlog(Focus, "focus", "A backlog: the customary design at its best, and weir's claims", p.FocusRounds, p.FocusRecords, payloadBytes)
	return s.consumedByRivals(ctx, e, 2, outboxload.ConsumeConfig{Records: p.FocusRecords, Payload: payloadBytes})
}

// length lets the best combination and weir's claim modes consume a backlog of a certain
// length.
func (s *run) length(ctx context.Context, name string, records int64) error {
	e := s.backlog(Records, name, fmt.Sprintf("A backlog of %d rows", records), s.o.Plan.Rounds, records, payloadBytes)
	return s.consumedByRivals(ctx, e, 1, outboxload.ConsumeConfig{Records: records, Payload: payloadBytes})
}

// payload compares claim modes at a payload size, with fewer rows for large ones.
func (s *run) payload(ctx context.Context, name string, size int, records int64) error {
	e := s.backlog(Payload, name, fmt.Sprintf("A backlog of %d payloads of %d bytes", records, size), s.o.Plan.Rounds, records, size)
	return s.consumedByRivals(ctx, e, 1, outboxload.ConsumeConfig{Records: records, Payload: size})
}

// enqueue compares ways of enqueuing, without a relay.
func (s *run) enqueue(ctx context.Context, name string, n int) error {
	p := s.o.Plan
	e := s.experiment(Enqueue, name, "Enqueuing alone, "+producersName(n), p.Rounds, map[string]string{
		"producers": strconv.Itoa(n), "payload": strconv.Itoa(payloadBytes), "seconds": p.Duration.String(),
	})
	for _, how := range []string{withTx, withoutTx, grouped} {
		sub := &subject{rig: s.rig, enqueue: how}
		side := s.produceSide(how, sub, outboxload.ProduceConfig{Producers: n})
		side.Factors = map[string]string{"enqueue": how}
		e.Sides = append(e.Sides, side)
	}
	_, err := s.measure(ctx, e)
	return err
}

func producersName(n int) string { return report.Plural(n, "producer", "producers") }

// withoutRelay is the side of mixed experiments with producers only.
const withoutRelay = "no relay"

// mixed runs producers and relay together, in a closed loop.
func (s *run) mixed(ctx context.Context, name string, n int) error {
	p := s.o.Plan
	e := s.experiment(Mixed, name, "Producers and relay at once, closed loop, "+producersName(n), p.FocusRounds, map[string]string{
		"producers": strconv.Itoa(n), "payload": strconv.Itoa(payloadBytes), "seconds": p.Duration.String(),
	})
	return s.mixedSides(ctx, e, outboxload.ProduceConfig{Producers: n})
}

// offered is mixed at a fixed rate.
func (s *run) offered(ctx context.Context, name string, rate float64) error {
	p := s.o.Plan
	e := s.experiment(Mixed, name, fmt.Sprintf("%g messages per second, open loop", rate), p.Rounds, map[string]string{
		"rate": strconv.FormatFloat(rate, 'g', -1, 64), "connections": strconv.Itoa(p.OpenProducers),
		"payload": strconv.Itoa(payloadBytes), "seconds": p.Duration.String(),
	})
	e.Loop = "open"
	return s.mixedSides(ctx, e, outboxload.ProduceConfig{Producers: p.OpenProducers, Rate: rate})
}

// ends returns the smallest and the largest of some numbers.
func ends(of []int) []int {
	out := []int{slices.Min(of), slices.Max(of)}
	return slices.Compact(out)
}

// mixedGrid runs producers and the customary design together, with every combination of workers
// and batch.
func (s *run) mixedGrid(ctx context.Context, name string, n int) error {
	p := s.o.Plan
	if !s.has(outbox.SkipLocked) {
		s.Leave("the mixed grid: %s has no SKIP LOCKED", s.o.Engine.Title())
		return nil
	}
	e := s.experiment(Grid, name, "Producers and relay at once by workers x batch, "+producersName(n), p.Rounds, map[string]string{
		"producers": strconv.Itoa(n), "payload": strconv.Itoa(payloadBytes), "seconds": p.GridDuration.String(),
	})
	c := outboxload.ProduceConfig{Producers: n, Duration: p.GridDuration}
	e.Sides = append(e.Sides, s.produceSide(withoutRelay, &subject{rig: s.rig, enqueue: withTx, shape: customaryShape}, c))
	c.Relay = true
	workers, batches := p.GridWorkers, p.GridBatches
	if p.GridEnds {
		workers, batches = ends(workers), ends(batches)
	}
	for _, w := range workers {
		for _, b := range batches {
			k := Combination{w, b}
			e.Sides = append(e.Sides, s.produceSide(sideName(outbox.SkipLocked, k), s.subject(outbox.SkipLocked, k), c))
		}
	}
	_, err := s.measure(ctx, e)
	return err
}

func (s *run) mixedSides(ctx context.Context, e bench.Experiment, c outboxload.ProduceConfig) error {
	e.Sides = append(e.Sides, s.produceSide(withoutRelay, &subject{rig: s.rig, enqueue: withTx}, c))
	names, subjects := s.rivals(1)
	for i, name := range names {
		with := c
		with.Relay = true
		e.Sides = append(e.Sides, s.produceSide(name, subjects[i], with))
	}
	_, err := s.measure(ctx, e)
	return err
}
