package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/bench"
	"github.com/weirdb/weir/internal/bench/scenario"
	"github.com/weirdb/weir/internal/report"
)

func newBenchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure what a boundary costs, and what weir makes of it",
	}
	cmd.AddCommand(newBenchProxyCommand(), newBenchReportCommand())
	return cmd
}

type benchProxy struct {
	plan, out, pgbouncer string
	resume, labServers   bool
	clients              []int
	rounds               int
	duration             time.Duration
}

func newBenchProxyCommand() *cobra.Command {
	var b benchProxy
	names := slices.Sorted(maps.Keys(scenario.ProxyPlans()))
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "PostgreSQL direct, through PgBouncer and through weir, side by side",
		Long: `Start a private PostgreSQL server, PgBouncer if it is installed, and weir proxy;
send them the same load in turn (A B B A); check every answer, and after each
round every row; report ratios with confidence intervals.`,
		Example: `  weir bench proxy --plan mini
  weir bench proxy --plan full --out out/full --resume`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			plan, ok := scenario.ProxyPlans()[b.plan]
			if !ok {
				return UsageError(fmt.Errorf("--plan %q: want one of %s", b.plan, strings.Join(names, ", ")))
			}
			if !b.labServers {
				return UsageError(fmt.Errorf("--lab=false: the proxy bench drops and fills tables, and runs on its own servers only"))
			}
			return b.run(cmd.Context(), plan, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&b.plan, "plan", "mini", "how much to run: "+strings.Join(names, ", "))
	f.StringVar(&b.out, "out", "", "directory for samples, results and the report (default out/bench-proxy-TIME)")
	f.BoolVar(&b.resume, "resume", false, "go on from the samples in --out")
	f.BoolVar(&b.labServers, "lab", true, "start private servers, the only way there is so far")
	f.StringVar(&b.pgbouncer, "pgbouncer", "", "PgBouncer program to compare with (default: the installed one)")
	f.IntSliceVar(&b.clients, "clients", nil, "numbers of clients, instead of the plan's")
	f.IntVar(&b.rounds, "rounds", 0, "rounds of each experiment, instead of the plan's")
	f.DurationVar(&b.duration, "duration", 0, "measured time of each round, instead of the plan's")
	return cmd
}

func (b *benchProxy) run(ctx context.Context, plan scenario.ProxyPlan, stdout, stderr io.Writer) error {
	b.out = cmp.Or(b.out, stampedDir("bench-proxy"))
	if len(b.clients) > 0 {
		for _, list := range []*[]int{&plan.Inserts, &plan.Slow, &plan.Reads, &plan.Failing, &plan.Crowd} {
			if len(*list) > 0 {
				*list = b.clients
			}
		}
	}
	if b.rounds > 0 {
		plan.Rounds = b.rounds
	}
	if b.duration > 0 {
		plan.Duration = b.duration
	}
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	out, err := scenario.Proxy(ctx, scenario.ProxyOptions{
		Plan: plan, Out: b.out, Resume: b.resume, Binary: binary, PgBouncer: b.pgbouncer,
		Progress: func(p bench.Progress) { printProgress(stderr, p) },
		Say:      func(format string, args ...any) { fmt.Fprintf(stderr, format+"\n", args...) },
	})
	if err != nil {
		return err
	}
	return writeProxyReport(b.out, out, stdout)
}

// printProgress tells of one sample on a line of its own.
func printProgress(w io.Writer, p bench.Progress) {
	note := ""
	if p.Cached {
		note = "  (kept)"
	}
	fmt.Fprintf(w, "  [%d/%d] %-14s %9.0f ops/s  p50 %s%s\n", p.Done, p.Total, p.Side,
		float64(p.Sample.Ops)/p.Sample.Seconds, time.Duration(p.Sample.Latency.Quantile(0.5)).Round(time.Microsecond), note)
}

// writeProxyReport saves the outcome and prints the report for a quick look.
func writeProxyReport(dir string, out *scenario.ProxyOutcome, stdout io.Writer) error {
	page, err := out.Save(dir)
	if err != nil {
		return err
	}
	if err := out.Brief().Write(stdout, report.FormatText); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\nreport  %s\n", page)
	return nil
}

func newBenchReportCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "report DIR",
		Short:   "Make the report of a finished run again",
		Example: "  weir bench report out/bench-proxy --format md",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			out, err := scenario.Load(args[0])
			if err != nil {
				return err
			}
			if format == "" {
				return writeProxyReport(args[0], out, cmd.OutOrStdout())
			}
			return out.Report().Write(cmd.OutOrStdout(), report.Format(format))
		},
	}
	cmd.Flags().StringVarP(&format, "format", "f", "", "print text, md, csv, html or json, and write no files")
	return cmd
}
