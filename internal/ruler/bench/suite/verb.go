package suite

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/report"
)

// Bench is the benchmark of a product, as cmd/weir registers it.
type Bench struct {
	Verb  *cobra.Command   // weir bench NAME
	Other []*cobra.Command // further verbs of weir, such as weir demo
	File  *File
	New   func() Run // returns an empty run, to load into
}

// Load reads the run in a directory. Its error matches fs.ErrNotExist if the directory does not
// exist, or holds none of these benches.
func Load(dir string, benches []Bench) (Run, *File, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, nil, fmt.Errorf("read run: %w", err)
	}
	for _, b := range benches {
		run := b.New()
		if err := b.File.Load(dir, run); !errors.Is(err, fs.ErrNotExist) {
			return run, b.File, err
		}
	}
	return nil, nil, &noRunError{dir, benches}
}

// noRunError is the error of a directory that holds none of these benches. It matches
// fs.ErrNotExist.
type noRunError struct {
	dir     string
	benches []Bench
}

func (e *noRunError) Error() string {
	var names []string
	for _, b := range e.benches {
		names = append(names, b.Verb.Name())
	}
	return fmt.Sprintf("%s holds no run of weir bench %s; other results are rendered by weir report %s", e.dir, strings.Join(names, ", "), cli.ShellWord(e.dir))
}

func (e *noRunError) Is(target error) bool { return target == fs.ErrNotExist }

// Command is weir bench, with the verbs of benches.
func Command(benches ...Bench) *cobra.Command {
	cmd := &cobra.Command{Use: "bench", Short: "Run and compare benchmarks"}
	for _, b := range benches {
		cmd.AddCommand(b.Verb)
	}
	cmd.AddCommand(reportCommand(benches))
	return cmd
}

func reportCommand(benches []Bench) *cobra.Command {
	var format string
	var asJSON cli.JSON[*report.Doc]
	cmd := &cobra.Command{
		Use:     "report DIR",
		Short:   "Write the report of a finished run again",
		Example: "  weir bench report out/bench-proxy --output md",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			run, file, err := Load(args[0], benches)
			if err != nil {
				return err
			}
			if asJSON.Given() {
				format = string(report.FormatJSON)
			}
			if format == "" {
				return file.print(args[0], run, cmd.OutOrStdout(), false)
			}
			doc, err := Document(args[0], run)
			if err != nil {
				return err
			}
			return doc.Write(cmd.OutOrStdout(), report.Format(format))
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "", "print text, md, csv, html or json, and write no files")
	cli.RenamedP(cmd, "format", "f", "output")
	cli.Words(cmd, "output", "text", "md", "csv", "html", "json")
	asJSON.Flag(cmd.Flags(), "print the report as JSON, and write no files")
	return cmd
}

// print saves a run and prints the part that fits a terminal.
func (f *File) print(dir string, run Run, stdout io.Writer, asJSON bool) error {
	page, err := f.Save(dir, run)
	if err != nil {
		return err
	}
	if asJSON {
		return run.Brief().Write(stdout, report.FormatJSON)
	}
	if err := run.Brief().Write(stdout, report.FormatText); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "\nreport  %s\n", page)
	return err
}

// Finish saves what a run measured, if anything, prints its summary, and sets the exit code if
// promises were broken. err is the error of the run.
func (b *Flags) Finish(file *File, dir string, run Run, err error, stdout io.Writer) error {
	if len(run.Common().Results) > 0 {
		err = errors.Join(err, file.print(dir, run, stdout, b.JSON.Given()))
	}
	if err != nil {
		return err
	}
	return Judge(run.Common())
}

// Judge returns an error with its own exit code if rounds are invalid.
func Judge(o *Outcome) error {
	if broken := o.Invalid(); len(broken) > 0 {
		return cli.Shortfall(fmt.Errorf("%d rounds are invalid: %s", len(broken), strings.Join(broken, " | ")))
	}
	return nil
}

// Flags are the flags of every bench.
type Flags struct {
	Plan        string
	Out         string
	Resume      bool
	Experiments []string
	JSON        cli.JSON[*report.Doc]
}

// Add defines the flags. name is the bench's name, plans the values of --plan.
func (b *Flags) Add(f *pflag.FlagSet, name, plans string) {
	f.StringVar(&b.Plan, "plan", "mini", "how much to run: "+plans)
	names, _, _ := strings.Cut(plans, " (")
	cli.Takes(f, "plan", strings.Split(names, ", ")...)
	f.StringSliceVar(&b.Experiments, "experiments", nil, "experiments of the plan to run, or groups of them (default all; a wrong name lists them)")
	f.StringVar(&b.Out, "out", "", "directory for samples, results and the report (default out/bench-"+name+"-TIME)")
	f.BoolVar(&b.Resume, "resume", false, "continue from the samples in --out")
	b.JSON.Flag(f, "print the summary as JSON")
}

// Alias defines an older name of --experiments.
func (b *Flags) Alias(f *pflag.FlagSet, name string) {
	f.StringSliceVar(&b.Experiments, name, nil, "the same as --experiments")
	f.Lookup(name).Hidden = true
}

// Names lists the plans, for a help text or an error.
func Names[P any](plans map[string]P) string {
	return strings.Join(slices.Sorted(maps.Keys(plans)), ", ")
}

// PlanOf returns the requested plan.
func PlanOf[P any](b *Flags, plans map[string]P) (P, error) {
	plan, ok := plans[b.Plan]
	if !ok {
		return plan, fmt.Errorf("--plan %q: want one of %s", b.Plan, Names(plans))
	}
	return plan, nil
}

// Options checks the flags against each other and against the steps of the plan.
func (b *Flags) Options(name string, steps []Step) (Options, error) {
	if b.Resume && b.Out == "" {
		return Options{}, errors.New("--resume: name the directory with --out")
	}
	if _, _, err := Choose(steps, b.Experiments); err != nil {
		return Options{}, fmt.Errorf("--experiments: %w", err)
	}
	return Options{Out: cmp.Or(b.Out, NewDirName("bench-"+name)), Resume: b.Resume, Experiments: b.Experiments}, nil
}

// CheckNumbers returns an error if a number in a flag's list is too small or occurs twice.
func CheckNumbers(flag string, list []int, least int) error {
	for i, n := range list {
		if n < least {
			return fmt.Errorf("%s %d: want at least %d", flag, n, least)
		}
		if slices.Contains(list[:i], n) {
			return fmt.Errorf("%s names %d twice", flag, n)
		}
	}
	return nil
}

// NewDirName names a directory for the results of a run that starts now. Two runs that start in
// the same second get different names.
func NewDirName(kind string) string {
	return filepath.Join("out", fmt.Sprintf("%s-%s-%d", kind, time.Now().Format("20060102-150405"), os.Getpid()))
}

// ReportProgress makes a run write its progress to w: its messages, and a line for each sample with its
// rate in a unit or, without a unit, the time of one operation. more adds further text; it may
// be nil.
func (o *Options) ReportProgress(w io.Writer, unit string, more func(*bench.Sample) string) {
	o.Say = func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	o.Progress = func(p bench.Progress) {
		s := &p.Sample
		figure := time.Duration(s.Seconds / float64(max(s.Ops, 1)) * float64(time.Second)).Round(time.Microsecond).String()
		if unit != "" {
			rate := 0.0
			if s.Seconds > 0 {
				rate = float64(s.Ops) / s.Seconds
			}
			figure = fmt.Sprintf("%.0f %s", rate, unit)
		}
		note := ""
		if more != nil {
			note = more(s)
		}
		switch {
		case p.Cached:
			note += "  (kept)"
		case p.Round < 0:
			note += "  (warm-up)"
		}
		if n := s.Failed(); n > 0 {
			note += fmt.Sprintf("  %d failed", n)
		}
		if len(s.Invalid) > 0 {
			note += "  INVALID: " + strings.Join(s.Invalid, "; ")
		}
		fmt.Fprintf(w, "  [%d/%d] %-22s %15s%s\n", p.Done, p.Total, p.Side, figure, note)
	}
}

// P50 formats the median latency of a sample, for Tell.
func P50(s *bench.Sample) string {
	if s.Latency == nil || s.Latency.Count() == 0 {
		return ""
	}
	return fmt.Sprintf("  p50 %s", time.Duration(s.Latency.Quantile(0.5)).Round(time.Microsecond))
}
