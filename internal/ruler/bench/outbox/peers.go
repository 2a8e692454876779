package outboxbench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/ruler/bench"
	outboxload "github.com/weirdb/weir/internal/ruler/bench/outbox/load"
	"github.com/weirdb/weir/internal/ruler/bench/subject/messages"
)

// peers compares weir's claim modes with other outboxes on the same server, with the same
// payloads and the same durability. The others run in a separate program and module, so that
// weir does not depend on any of them.
func (s *run) peers(ctx context.Context) error {
	if s.o.Peers == "" {
		s.Leave("other outboxes: the program that runs them is missing (make peers)")
		return nil
	}
	if s.o.DSN != "" {
		s.Leave("other outboxes: their tables are made on a private server only")
		return nil
	}
	all, err := s.peerList(ctx)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(p outboxload.Peer) bool { return !slices.Contains(p.Schemes, string(s.o.Engine)) })
	if len(all) == 0 {
		s.Leave("other outboxes: none of the available ones supports %s", s.o.Engine.Title())
		return nil
	}
	p := s.o.Plan
	e := s.backlog(Peers, "peers", "A backlog: weir and other outboxes", p.Rounds, p.FocusRecords, payloadBytes)
	names, subjects := s.rivals(1)
	for i, name := range names {
		e.Sides = append(e.Sides, s.consumeSide(name, subjects[i], outboxload.ConsumeConfig{Records: p.FocusRecords, Payload: payloadBytes}))
	}
	for _, peer := range all {
		e.Sides = append(e.Sides, s.peerSide(peer, outboxload.Job{Records: p.FocusRecords}))
	}
	if _, err := s.measure(ctx, e); err != nil {
		return err
	}
	for _, n := range p.MixedProducers {
		e := s.experiment(Peers, fmt.Sprintf("peers-mixed-%d", n), "Producers and relay at once, weir and other outboxes, closed loop, "+producersName(n), p.Rounds, map[string]string{
			"producers": strconv.Itoa(n), "payload": strconv.Itoa(payloadBytes), "seconds": p.Duration.String(),
		})
		names, subjects := s.rivals(1)
		for i, name := range names {
			e.Sides = append(e.Sides, s.produceSide(name, subjects[i], outboxload.ProduceConfig{Producers: n, Relay: true}))
		}
		for _, peer := range all {
			e.Sides = append(e.Sides, s.peerSide(peer, outboxload.Job{Producers: n, Relay: true, Warmup: p.Settle, Duration: p.Duration}))
		}
		if _, err := s.measure(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// peerList asks the program which outboxes it has.
func (s *run) peerList(ctx context.Context) ([]outboxload.Peer, error) {
	b, err := exec.CommandContext(ctx, s.o.Peers, "list").Output()
	if err != nil {
		return nil, fmt.Errorf("ask %s for its outboxes: %w", s.o.Peers, err)
	}
	var all []outboxload.Peer
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, fmt.Errorf("read the outboxes of %s: %w", s.o.Peers, err)
	}
	return all, nil
}

// peerSide is a side that another program runs. The server's counters are not read for it.
func (s *run) peerSide(peer outboxload.Peer, job outboxload.Job) bench.Side {
	job.Peer, job.DSN, job.ServerPID, job.Payload, job.Patience = peer.Name, s.dsn, s.db.PID(), payloadBytes, s.o.Plan.Drain
	name := peer.Name + " " + peer.Version
	return bench.Side{
		Name: name, Factors: map[string]string{FactorRelay: name},
		Run: func(ctx context.Context, _ int) (bench.Sample, error) {
			out, err := s.outside(ctx, job)
			if err != nil {
				return bench.Sample{}, fmt.Errorf("%s: %w", name, err)
			}
			out.Sample.Invalid = messages.Of(out.Sample.Parts).Ledger.Broken(peer.Ordered)
			return out.Sample, nil
		},
	}
}

// outside lets the other program run a job. It ends with ctx.
func (s *run) outside(ctx context.Context, job outboxload.Job) (*outboxload.Outcome, error) {
	in, err := json.Marshal(job)
	if err != nil {
		return nil, fmt.Errorf("write the job: %w", err)
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, s.o.Peers, "run")
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), &stderr
	b, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	var out outboxload.Outcome
	if err := json.Unmarshal(b, &out); err != nil {
		return nil, fmt.Errorf("read the outcome: %w", err)
	}
	if messages.Of(out.Sample.Parts) == nil {
		return nil, fmt.Errorf("the outcome holds no ledger")
	}
	return &out, nil
}
