package study

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/measure/outside"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/profile"
	"github.com/weirdb/weir/internal/ruler/report"
)

// Pass is one case run once more under an external tool, and once without it. Since the tool
// slows the program down, a pass is not a round; its rates only show the slowdown.
type Pass struct {
	Tool   string `json:"tool"`
	Engine string `json:"engine"`
	Case   string `json:"case"`
	// Missing says why there is nothing else: the tool is not installed, or may not be used.
	Missing string `json:"missing,omitempty"`
	// Plain and Under are the operations per second without the tool and under it. Ops counts
	// those under it, warm-up included.
	Plain float64 `json:"plain,omitempty"`
	Under float64 `json:"under,omitempty"`
	Ops   int64   `json:"ops,omitempty"`
	// Calls are the system calls of the client, from strace.
	Calls []outside.Call `json:"calls,omitempty"`
	// Client and Server are where CPU time went, from perf.
	Client *outside.Profile `json:"client,omitempty"`
	Server *outside.Profile `json:"server,omitempty"`
}

// The tools of passes.
const (
	toolStrace = "strace"
	toolPerf   = "perf"
)

// A pass is short: it shows what is done, not how fast.
const (
	passWarmup  = 300 * time.Millisecond
	passAtLeast = time.Second
	passAtMost  = 2 * time.Second
)

// passes runs the requested passes.
func (s *Study) passes(ctx context.Context, t *profile.Target, w *profile.Workload, list []caseOf, o Options) ([]Pass, error) {
	var out []Pass
	for _, tool := range s.Tools {
		c := chosen(list)
		o.Say("%s: %s again, with and without the tool", tool, c.name)
		p, err := pass(ctx, t, w, c, tool)
		if err != nil {
			return out, fmt.Errorf("%s: %w", tool, err)
		}
		if p.Missing != "" {
			o.Say("left out: %s", p.Missing)
		}
		out = append(out, *p)
	}
	return out, nil
}

// chosen is the case for passes: the last one that starts warm.
func chosen(list []caseOf) caseOf {
	for _, c := range slices.Backward(list) {
		if !c.config.Cold {
			return c
		}
	}
	return list[len(list)-1]
}

func pass(ctx context.Context, t *profile.Target, w *profile.Workload, c caseOf, tool string) (*Pass, error) {
	cfg := c.config
	cfg.Warmup = min(cfg.Warmup, passWarmup)
	if cfg.Duration > 0 {
		cfg.Duration = min(max(cfg.Duration, passAtLeast), passAtMost)
	}
	out := &Pass{Tool: tool, Engine: t.Engine, Case: c.name}
	plain, err := t.Measure(ctx, w, cfg)
	if err != nil {
		return nil, err
	}
	var under bench.Sample
	if tool == toolStrace {
		under, err = out.strace(ctx, t, w, cfg)
	} else {
		under, err = out.perf(ctx, t, w, cfg)
	}
	switch {
	case errors.Is(err, outside.ErrMissing):
		out.Missing = err.Error()
		return out, nil
	case err != nil:
		return nil, err
	}
	out.Plain, out.Under, out.Ops = rate(&plain), rate(&under), under.Ops
	if under.Cold != nil {
		out.Ops += under.Cold.Ops
	}
	return out, nil
}

func rate(s *bench.Sample) float64 {
	if s.Seconds <= 0 {
		return 0
	}
	return float64(s.Ops) / s.Seconds
}

// strace counts the system calls of this process, which is the client.
func (p *Pass) strace(ctx context.Context, t *profile.Target, w *profile.Workload, cfg profile.Config) (bench.Sample, error) {
	trace, err := outside.Strace(ctx, os.Getpid())
	if err != nil {
		return bench.Sample{}, err
	}
	s, err := t.Measure(ctx, w, cfg)
	calls, stopErr := trace.Stop()
	p.Calls = calls
	return s, errors.Join(err, stopErr)
}

// perf samples this process and, if it is on this machine, the server.
func (p *Pass) perf(ctx context.Context, t *profile.Target, w *profile.Workload, cfg profile.Config) (bench.Sample, error) {
	d := cmp.Or(cfg.Duration, time.Second)
	type seen struct {
		p   *outside.Profile
		err error
	}
	look := func(pids func() []int) chan seen {
		out := make(chan seen, 1)
		go func() {
			select { // wait until sessions are open and their server processes exist
			case <-ctx.Done():
				out <- seen{err: ctx.Err()}
				return
			case <-time.After(passWarmup):
			}
			all := pids()
			if len(all) == 0 {
				out <- seen{}
				return
			}
			profile, err := outside.Perf(ctx, all, d)
			out <- seen{profile, err}
		}()
		return out
	}
	client := look(func() []int { return []int{os.Getpid()} })
	server := look(t.ServerPIDs)
	s, err := t.Measure(ctx, w, cfg)
	c, v := <-client, <-server
	p.Client, p.Server = c.p, v.p
	return s, errors.Join(err, c.err, v.err)
}

// PassesFile is the name of the file with the passes, next to the result.
const PassesFile = "passes.json"

// SavePasses writes passes into the directory of a run.
func SavePasses(dir string, passes []Pass) error {
	b, err := json.MarshalIndent(passes, "", " ")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, PassesFile), append(b, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write passes: %w", err)
	}
	return nil
}

// LoadPasses reads what SavePasses wrote; none if there is no file.
func LoadPasses(dir string) ([]Pass, error) {
	b, err := os.ReadFile(filepath.Join(dir, PassesFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []Pass
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		return nil, fmt.Errorf("read passes: %w", err)
	}
	return out, nil
}

// PassSections are the sections of a report about passes.
func PassSections(passes []Pass) []report.Section {
	var out []report.Section
	for i := range passes {
		p := &passes[i]
		s := report.Section{Title: fmt.Sprintf("By %s: %s, %s", p.Tool, p.Engine, p.Case)}
		switch {
		case p.Missing != "":
			s.Text = []string{"Left out: " + p.Missing + "."}
		default:
			s.Text = []string{p.slowdown()}
			s.Tables = p.tables()
			if len(s.Tables) == 0 {
				s.Text = append(s.Text, p.Tool+" saw nothing.")
			}
		}
		out = append(out, s)
	}
	return out
}

// slowdown describes how much the tool slowed the program down.
func (p *Pass) slowdown() string {
	if p.Under <= 0 || p.Plain <= 0 {
		return "No operation ended under " + p.Tool + "."
	}
	text := fmt.Sprintf("%s ops/s without %s and %s under it, in one pair of runs: ", bench.Figure(p.Plain), p.Tool, bench.Figure(p.Under))
	if ratio := p.Plain / p.Under; ratio >= 1.05 {
		text += fmt.Sprintf("%s times slower. ", bench.Figure(ratio))
	} else {
		text += "no difference that one pair could show. "
	}
	if p.Tool == toolStrace {
		text += "strace stops a thread twice for each call. Its counts are right, its times are mostly its own."
	}
	return text
}

// mostCalls and mostFunctions limit the lists.
const (
	mostCalls     = 15
	mostFunctions = 15
)

func (p *Pass) tables() []report.Table {
	if p.Tool == toolStrace {
		t := report.Table{
			Title:   "System calls of the client",
			Columns: report.Columns(":call", "calls", "for each operation", "failed", "time, by strace|s"),
			Note:    fmt.Sprintf("%d operations, including the warm-up.", p.Ops),
		}
		for _, c := range p.Calls[:min(mostCalls, len(p.Calls))] {
			t.Rows = append(t.Rows, report.Cells(c.Name, strconv.FormatInt(c.Calls, 10), bench.Figure(float64(c.Calls)/float64(max(1, p.Ops))), strconv.FormatInt(c.Errors, 10), fmt.Sprintf("%.3f", c.Seconds)))
		}
		return []report.Table{t}
	}
	var out []report.Table
	for _, side := range []struct {
		name string
		of   *outside.Profile
	}{{"client", p.Client}, {"server", p.Server}} {
		if side.of == nil || side.of.Samples == 0 {
			continue
		}
		t := report.Table{
			Title:   "CPU time of the " + side.name + " by function",
			Columns: report.Columns(":function", ":of", "itself|%", "samples"),
			Note:    fmt.Sprintf("%d samples in %.1f s, %d per second of CPU time, kernel and program.", side.of.Samples, side.of.Seconds, side.of.Hz),
		}
		for _, f := range side.of.Functions[:min(mostFunctions, len(side.of.Functions))] {
			t.Rows = append(t.Rows, report.Cells(f.Name, f.Object, fmt.Sprintf("%.1f", 100*float64(f.Samples)/float64(side.of.Samples)), strconv.FormatInt(f.Samples, 10)))
		}
		out = append(out, t)
	}
	return out
}
