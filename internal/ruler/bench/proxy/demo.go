package proxybench

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
	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// demoEngines are the engines of the demo, in order.
var demoEngines = []suite.Engine{suite.PostgreSQL, suite.MariaDB}

// Stack is weir demo --stack.
type Stack interface {
	// Flags adds the flags that only --stack uses.
	Flags(f *pflag.FlagSet)
	// Show runs the demo with the program weir, and writes logs and a report to the directory
	// out. It reports whether every promise was kept.
	Show(ctx context.Context, weir, out string, stdout io.Writer) (held bool, err error)
}

// newDemoCommand is weir demo. If stack is nil, this build has no --stack.
func newDemoCommand(stack Stack) *cobra.Command {
	var out string
	var whole bool
	own := pflag.NewFlagSet("stack", pflag.ContinueOnError)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run one load, direct and through weir, on a private PostgreSQL and MariaDB",
		Long: `Start a private PostgreSQL that flushes at every commit, and weir proxy in front of
it. 64 clients insert single rows: in turn direct, through PgBouncer if it is
installed, and through weir. Then the same with MariaDB. Every answer is checked
and every row is counted. A server that is not installed is left out. It takes
under a minute; Ctrl-C ends everything and removes it.

--stack runs all of weir at once: a shop on a PostgreSQL primary with a standby, written
through two proxies behind a balancer; its events relayed to NATS; a lock and a counter
in a weir kv of three replicas. A page has buttons that kill the primary, a relay, a
proxy or a replica, or take a backup and restore it to another database. A ledger checks
that no acknowledged order is lost, every event is delivered and in order for its
customer, the counter is exact, and only one client holds the lock at a time. Ctrl-C,
--duration or --auto ends it with a report. The exit code is 3 if a promise was broken.`,
		Example: `  weir demo
  weir demo --stack
  weir demo --stack --auto --duration 60s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			binary, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			if whole {
				held, err := stack.Show(cmd.Context(), binary, cmp.Or(out, suite.NewDirName("demo-stack")), cmd.OutOrStdout())
				if err == nil && !held {
					err = cli.Shortfall(errors.New("a promise was broken"))
				}
				return err
			}
			alone := ""
			own.VisitAll(func(f *pflag.Flag) {
				if f.Changed {
					alone = f.Name
				}
			})
			if alone != "" {
				return cli.UsageError(fmt.Errorf("--%s is for --stack", alone))
			}
			d := demo{binary: binary, out: cmp.Or(out, suite.NewDirName("demo")), stdout: cmd.OutOrStdout(), measure: Run}
			return d.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&out, "out", "", "directory for samples, results and the reports (default out/demo-TIME)")
	if stack != nil {
		f.BoolVar(&whole, "stack", false, "run all of weir together, with a page that kills its parts")
		stack.Flags(own)
		f.AddFlagSet(own)
	}
	return cmd
}

type demo struct {
	binary, out string
	stdout      io.Writer
	measure     func(context.Context, Options) (*Outcome, error)
}

// run shows each installed engine. If an engine fails, the figures measured before are still
// shown.
func (d *demo) run(ctx context.Context) error {
	live := newLiveLine(d.stdout)
	fmt.Fprintln(d.stdout, "weir demo: single-row INSERTs from 64 clients, each answered only when its row is durable")
	var shown []*Outcome
	var pages []string
	var missing []error
	for _, e := range demoEngines {
		got, page, err := d.show(ctx, e, live)
		live.clear()
		switch {
		case lab.NotInstalled(err):
			missing = append(missing, err)
			fmt.Fprintf(d.stdout, "  %s is left out: %v\n", e.Title(), err)
		case err != nil:
			if got != nil { // what was measured until then
				shown, pages = append(shown, got), append(pages, page)
			}
			if len(shown) > 0 {
				d.conclude(shown, pages)
			}
			return fmt.Errorf("show %s: %w", e.Title(), err)
		default:
			shown, pages = append(shown, got), append(pages, page)
		}
	}
	if len(shown) == 0 {
		return errors.Join(missing...)
	}
	d.conclude(shown, pages)
	fmt.Fprint(d.stdout, "next    weir bench proxy --plan full                     every client count, window, slow disk, lookups\n"+
		"        weir bench proxy --plan full --engine mariadb    the same on MariaDB\n")
	return nil
}

// conclude prints the table and the paths of the reports.
func (d *demo) conclude(shown []*Outcome, pages []string) {
	printDemo(d.stdout, shown)
	fmt.Fprintln(d.stdout)
	for _, page := range pages {
		fmt.Fprintf(d.stdout, "report  %s\n", page)
	}
}

// show measures one engine and returns its report's page. With an error it still returns the
// outcome of what was measured before, if there is any.
func (d *demo) show(ctx context.Context, e suite.Engine, live *liveLine) (*Outcome, string, error) {
	out := filepath.Join(d.out, string(e))
	got, err := d.measure(ctx, Options{
		Engine: e, Plan: Plans()["demo"], Binary: d.binary, Live: live.update,
		Options: suite.Options{Out: out, Say: func(format string, args ...any) { live.line("  "+format, args...) }, Progress: live.done},
	})
	if err != nil && (got == nil || len(got.Results) == 0) {
		return nil, "", err
	}
	page, saveErr := got.Save(out)
	return got, page, errors.Join(err, saveErr)
}

// printDemo prints the table, and its meaning in one sentence.
func printDemo(w io.Writer, outcomes []*Outcome) {
	fmt.Fprintf(w, "\n  %-11s %-12s %12s  %10s  %9s  %9s  %12s  %12s\n", "", "", "inserts/s", "vs direct", "p50 ms", "p99 ms", "flushes/1000", "server us/op")
	var rows int64
	rounds := 0
	unclear := false
	var all []*bench.Result
	for _, o := range outcomes {
		all = append(all, o.Results...)
		for _, r := range o.Results {
			engine, direct := o.Engine.Title(), r.Find("direct")
			for _, c := range r.Cases {
				against := ""
				if c != direct && direct != nil {
					if ratio, err := bench.Compare(direct, c, "rate"); err == nil {
						against = fmt.Sprintf("%.2f x", ratio.Ratio.Median)
						if ratio.Verdict == bench.CannotTell {
							against, unclear = "? "+against, true
						}
					}
				}
				rounds = max(rounds, len(c.Samples)) // fewer than planned if it was interrupted
				for j := range c.Samples {
					if s := c.Samples[j].Server; s != nil {
						rows += s.Ops
					}
				}
				fmt.Fprintf(w, "  %-11s %-12s %12.0f  %10s  %9.2f  %9.2f  %12.1f  %12.1f\n", engine, c.Name, c.Summary["rate"].Median, against,
					c.Summary["p50"].Median, c.Summary["p99"].Median, c.Summary["fsyncs"].Median, c.Summary["cpu_server"].Median)
				engine = ""
			}
		}
	}
	fmt.Fprintf(w, "\n  %d rows acknowledged, each found exactly once. Medians of %d rounds in which the sides took turns.\n", rows, rounds)
	if unclear {
		fmt.Fprint(w, "  ? The rounds show no clear difference: cannot tell which side is ahead. The reports have the intervals.\n")
	}
	for _, f := range bench.Cautions(all...) {
		fmt.Fprintf(w, "  Caution: %s %s\n", f.Claim, f.Advice)
	}
}

// liveLine shows the current rate: on a terminal in one line that is overwritten, elsewhere in
// a line for each finished round.
type liveLine struct {
	w    io.Writer
	tty  bool
	last int64
	at   time.Duration
	side string
}

func newLiveLine(w io.Writer) *liveLine {
	l := &liveLine{w: w}
	if f, ok := w.(*os.File); ok {
		if info, err := f.Stat(); err == nil {
			l.tty = info.Mode()&os.ModeCharDevice != 0
		}
	}
	return l
}

// update is called from one goroutine at a time.
func (l *liveLine) update(side string, ops int64, since time.Duration) {
	if !l.tty {
		return
	}
	if side != l.side || since < l.at {
		l.side, l.last, l.at = side, 0, 0
	}
	rate := float64(ops-l.last) / (since - l.at).Seconds()
	l.last, l.at = ops, since
	bar := strings.Repeat("#", min(50, int(rate/2000)))
	fmt.Fprintf(l.w, "\r\033[K  %-12s %8.0f inserts/s  %9d so far  %s", side, rate, ops, bar)
}

func (l *liveLine) clear() {
	if l.tty {
		fmt.Fprint(l.w, "\r\033[K")
	}
}

func (l *liveLine) line(format string, args ...any) {
	l.clear()
	fmt.Fprintf(l.w, format+"\n", args...)
}

func (l *liveLine) done(p bench.Progress) {
	rate := float64(p.Sample.Ops) / p.Sample.Seconds
	l.line("  [%d/%d] %-12s %8.0f inserts/s   p50 %6.2f ms   every row found", p.Done, p.Total, p.Side, rate,
		float64(p.Sample.Latency.Quantile(0.5))/1e6)
}
