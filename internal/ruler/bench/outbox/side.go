package outboxbench

import (
	"cmp"
	"context"

	"github.com/weirdb/weir/internal/ruler/bench"
	outboxload "github.com/weirdb/weir/internal/ruler/bench/outbox/load"
	"github.com/weirdb/weir/internal/ruler/bench/subject/messages"
	"github.com/weirdb/weir/outbox"
)

// FactorRelay is the factor in which the sides of most experiments differ: the whole
// configuration of a relay, or "none".
const FactorRelay = "relay"

// FactorPhase is the phase that an experiment belongs to.
const FactorPhase = "phase"

// sideName returns the name of the side whose relay uses this claim mode.
func sideName(claim outbox.ClaimMode, c Combination) string {
	if c == (Combination{}) {
		return claim.String()
	}
	return claim.String() + " " + c.String()
}

// keepsOrder reports whether a relay promises the order of keys.
func keepsOrder(s *subject) bool {
	return s.config.Claim != outbox.SkipLocked || s.config.Publishers == 1
}

// consumeSide is a side whose relay delivers a backlog.
func (r *rig) consumeSide(name string, s *subject, c outboxload.ConsumeConfig) bench.Side {
	return bench.Side{
		Name: name, Factors: map[string]string{FactorRelay: name},
		Run: func(ctx context.Context, _ int) (bench.Sample, error) {
			return r.consumed(ctx, s, c, keepsOrder(s))
		},
	}
}

// consumed is one round of Consume.
func (r *rig) consumed(ctx context.Context, s outboxload.Subject, c outboxload.ConsumeConfig, ordered bool) (bench.Sample, error) {
	count := counting{rig: r}
	c.Watch, c.Begin, c.End, c.Patience = r.watch(), count.begin, count.end, r.o.Plan.Drain
	out, err := outboxload.Consume(ctx, s, c)
	if err != nil {
		return bench.Sample{}, err
	}
	count.into(&out.Sample, out.TotalOps)
	if probe, ok := s.(interface{ claimed() float64 }); ok {
		messages.Of(out.Sample.Parts).ClaimPages = probe.claimed()
	}
	judge(&out.Sample, s, ordered)
	return out.Sample, nil
}

// produceSide is a side with producers.
func (r *rig) produceSide(name string, s *subject, c outboxload.ProduceConfig) bench.Side {
	return bench.Side{
		Name: name, Factors: map[string]string{FactorRelay: name},
		Run: func(ctx context.Context, _ int) (bench.Sample, error) {
			return r.produced(ctx, s, c, keepsOrder(s))
		},
		Teardown: func(context.Context) error { return s.close() },
	}
}

// produced is one round of Produce.
func (r *rig) produced(ctx context.Context, s outboxload.Subject, c outboxload.ProduceConfig, ordered bool) (bench.Sample, error) {
	count := counting{rig: r}
	c.Watch, c.Begin, c.End = r.watch(), count.begin, count.end
	c.Drain, c.Classify, c.Payload = r.o.Plan.Drain, classify, cmp.Or(c.Payload, payloadBytes)
	c.Warmup, c.Duration = r.o.Plan.Settle, cmp.Or(c.Duration, r.o.Plan.Duration)
	out, err := outboxload.Produce(ctx, s, c)
	if err != nil {
		return bench.Sample{}, err
	}
	count.into(&out.Sample, out.TotalOps)
	judge(&out.Sample, s, ordered)
	return out.Sample, nil
}

// judge records the promises that the ledger shows broken, and the warnings of the relay.
func judge(s *bench.Sample, by outboxload.Subject, ordered bool) {
	s.Invalid = messages.Of(s.Parts).Ledger.Broken(ordered)
	if own, ok := by.(interface{ said() []string }); ok {
		s.Warnings = append(s.Warnings, own.said()...)
	}
}
