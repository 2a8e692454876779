package rulercmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/noise"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/report"
)

// benchAA is the configuration of `weir bench aa`.
type benchAA struct {
	noise       noise.Config
	slower, out string
	json        cli.JSON[aaReport]
}

func newBenchAACommand() *cobra.Command {
	var c benchAA
	var about strings.Builder
	for _, w := range noise.Workloads() {
		fmt.Fprintf(&about, "  %-8s %s\n", w.Name, w.About)
	}
	cmd := &cobra.Command{
		Use:   "aa",
		Short: "Measure the same thing twice, to find the noise of this machine",
		Long: `Run one workload as two sides that take turns, in random order. The two sides are
identical, so any difference between them is noise: weir bench gate --noise takes its
threshold from this noise floor. Workloads:

` + about.String() + `
With --slower the second side is slowed down on purpose, to see which differences this
machine can find.

The exit code is 3 when a difference is found between the equal sides, or when the
slowdown of --slower is not found.`,
		Example: `  weir bench aa
  weir bench aa --workload update --clients 8
  weir bench aa --slower 5%`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if c.noise.Slower, err = parsePart(c.slower); err != nil {
				return cli.UsageError(fmt.Errorf("--slower: %w", err))
			}
			if err := c.noise.Validate(); err != nil {
				return cli.UsageError(err)
			}
			return c.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.noise.Workload, "workload", "cpu", strings.Join(noise.Names(), ", "))
	cli.Takes(f, "workload", noise.Names()...)
	f.IntVar(&c.noise.Workers, "clients", 1, "operations in flight")
	f.IntVar(&c.noise.Pairs, "pairs", 80, "how often both sides take their turn")
	f.DurationVar(&c.noise.Slice, "turn", 60*time.Millisecond, "how long each turn is")
	f.StringVar(&c.slower, "slower", "0", "slowdown to plant in the second side, such as 5%")
	f.StringVar(&c.noise.Dir, "dir", "", "directory of the disk to measure, for flush (default the temporary one)")
	f.StringVar(&c.out, "out", "", "directory for the result (default out/aa-WORKLOAD-TIME)")
	c.json.Flag(cmd.Flags(), "print the floors and verdicts as JSON")
	return cmd
}

// aaReport is what `weir bench aa --json` prints.
type aaReport struct {
	Result      string                 `json:"result"`           // file
	Slower      float64                `json:"slower"`           // planted slowdown, as a share
	Comparisons []bench.Comparison     `json:"comparisons"`      // of equal sides
	Floors      map[string]bench.Floor `json:"floors,omitempty"` // by metric; none with a planted slowdown
}

func (c *benchAA) run(ctx context.Context, stdout, stderr io.Writer) error {
	c.out = cmp.Or(c.out, suite.NewDirName("aa-"+c.noise.Workload))
	c.noise.Progress = func(p bench.Progress) {
		if p.Done%20 == 0 || p.Done == p.Total {
			fmt.Fprintf(stderr, "  %d of %d turns\n", p.Done, p.Total)
		}
	}
	r, err := noise.Run(ctx, c.noise)
	if r != nil {
		if mkdirErr := os.MkdirAll(c.out, 0o755); mkdirErr != nil {
			return fmt.Errorf("make result directory: %w", mkdirErr)
		}
		if writeErr := r.WriteFiles(c.out); writeErr != nil {
			return writeErr
		}
	}
	if err != nil {
		return err
	}
	out := aaReport{Result: filepath.Join(c.out, r.Experiment.Name+".json"), Slower: c.noise.Slower, Comparisons: r.Comparisons}
	if c.noise.Slower == 0 {
		if out.Floors, err = bench.NoiseFloor(r); err != nil {
			return err
		}
	}
	if c.json.Given() {
		err = c.json.Print(stdout, out)
	} else {
		err = c.print(stdout, r, out)
	}
	if err != nil {
		return err
	}
	return c.verdict(r)
}

func (c *benchAA) print(w io.Writer, r *bench.Result, out aaReport) error {
	title := "The same twice"
	if c.noise.Slower > 0 {
		title = fmt.Sprintf("A slowdown of %.3g %% was planted", 100*c.noise.Slower)
	}
	d := &report.Doc{Title: title, Subtitle: r.Experiment.Title, Env: &r.Env}
	s := report.Section{
		Title:  r.Experiment.Name,
		Text:   []string{fmt.Sprintf("%d pairs of turns of %v each, %d operations in flight.", r.Experiment.Rounds, c.noise.Slice, c.noise.Workers)},
		Tables: []report.Table{bench.ComparisonTable(r)},
	}
	if out.Floors != nil {
		s.Tables = append(s.Tables, bench.NoiseTable(r, out.Floors))
	}
	d.Sections = append(d.Sections, s)
	if err := d.Write(w, report.FormatText); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nresult  %s\n", out.Result)
	return err
}

// verdict returns the exit code. A planted slowdown is found if throughput, median latency or
// CPU time per operation shows it. On a busy machine only the latter two can, and CPU time only
// if the turns are long enough to measure it.
func (c *benchAA) verdict(r *bench.Result) error {
	var found []string
	needed := 0
	for _, k := range r.Comparisons {
		if c.noise.Slower == 0 && (k.Verdict == bench.Better || k.Verdict == bench.Worse) {
			return cli.Shortfall(fmt.Errorf("%s differs between two identical sides: %s", k.Metric, k.Verdict))
		}
		if k.Metric != "rate" && k.Metric != "p50" && k.Metric != "cpu" {
			continue
		}
		if k.Verdict == bench.Worse {
			return nil
		}
		found = append(found, fmt.Sprintf("%s: %s", k.Metric, k.Verdict))
		if k.Needed > 0 && (needed == 0 || k.Needed < needed) {
			needed = k.Needed
		}
	}
	if c.noise.Slower == 0 {
		return nil
	}
	text := "the planted slowdown was not found: " + strings.Join(found, ", ")
	if needed > 0 {
		text += fmt.Sprintf("; about %d pairs would", needed)
	}
	return cli.Shortfall(errors.New(text))
}
