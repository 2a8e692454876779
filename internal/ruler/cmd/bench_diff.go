package rulercmd

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject"
	"github.com/weirdb/weir/internal/ruler/report"
)

// benchDiff is the configuration of `weir bench diff`, and the common part of `weir bench
// gate`.
type benchDiff struct {
	options bench.DiffOptions
	format  string
}

func (c *benchDiff) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&c.options.Paired, "paired", false, "compare rounds of the same number as pairs; only right if the two runs took turns")
	f.StringSliceVar(&c.options.Metrics, "metric", nil, "metrics to compare (default rate,p50,p99,cpu,cpu_server)")
	f.StringSliceVar(&c.options.Cases, "case", nil, "cases to compare (default all)")
	f.BoolVar(&c.options.Anyway, "anyway", false, "compare results that are not comparable, and print the reasons")
	f.StringVarP(&c.format, "output", "o", "text", "what to print: text, md, csv or html")
	cli.RenamedP(cmd, "format", "f", "output")
	cli.Words(cmd, "output", "text", "md", "csv", "html")
}

func newBenchDiffCommand() *cobra.Command {
	var c benchDiff
	var asJSON cli.JSON[[]*bench.Diff]
	cmd := &cobra.Command{
		Use:   "diff FIRST SECOND",
		Short: "Compare two results",
		Long: `Compare two results, each a file or a directory: the same cases of the same
experiments, metric by metric, with intervals and one of four verdicts: better,
worse, no difference, cannot tell. Results that are not comparable are refused
with the reasons.`,
		Example: `  weir bench diff out/before out/after
  weir bench diff before.json after.json --metric cpu --json`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			diffs, second, err := c.compare(args[0], args[1])
			if err != nil {
				return err
			}
			if asJSON.Given() {
				return asJSON.Print(cmd.OutOrStdout(), diffs)
			}
			return bench.DiffDocument(&second.Env, diffs...).Write(cmd.OutOrStdout(), report.Format(c.format))
		},
	}
	c.flags(cmd)
	asJSON.Flag(cmd.Flags(), "print JSON")
	return cmd
}

// compare reads both sides and compares the experiments that both have. It also returns one of
// the second results, for its environment.
func (c *benchDiff) compare(first, second string) ([]*bench.Diff, *bench.Result, error) {
	if formats := []string{"text", "md", "csv", "html"}; !slices.Contains(formats, c.format) {
		return nil, nil, cli.UsageError(fmt.Errorf("--output %q: want one of %s", c.format, strings.Join(formats, ", ")))
	}
	c.options.Subjects = subject.All()
	for _, key := range c.options.Metrics {
		if _, ok := bench.MetricByKey(key, c.options.Subjects...); !ok {
			return nil, nil, cli.UsageError(fmt.Errorf("--metric %q: there is no such metric", key))
		}
	}
	as, err := bench.ReadPath(first, c.options.Subjects...)
	if err != nil {
		return nil, nil, err
	}
	bs, err := bench.ReadPath(second, c.options.Subjects...)
	if err != nil {
		return nil, nil, err
	}
	if len(as) == 1 && len(bs) == 1 {
		d, err := bench.CompareResults(as[0], bs[0], c.options)
		return []*bench.Diff{d}, bs[0], err
	}
	var out []*bench.Diff
	var refused []error
	for _, a := range as {
		i := slices.IndexFunc(bs, func(b *bench.Result) bool { return b.Experiment.Name == a.Experiment.Name })
		wanted := func(name string) bool { return a.Find(name) != nil || i >= 0 && bs[i].Find(name) != nil }
		if i < 0 || len(c.options.Cases) > 0 && !slices.ContainsFunc(c.options.Cases, wanted) {
			continue
		}
		d, err := bench.CompareResults(a, bs[i], c.options)
		if err != nil {
			refused = append(refused, fmt.Errorf("experiment %s: %w", a.Experiment.Name, err))
			continue
		}
		out = append(out, d)
	}
	which := ""
	if len(c.options.Cases) > 0 {
		which = fmt.Sprintf(" with one of the cases %q", c.options.Cases)
	}
	switch {
	case len(refused) > 0:
		return nil, nil, errors.Join(refused...)
	case len(out) == 0:
		return nil, nil, fmt.Errorf("compare %s and %s: they have no experiment in common%s", first, second, which)
	}
	return out, bs[0], nil
}
