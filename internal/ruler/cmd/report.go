package rulercmd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/report"
	"github.com/weirdb/weir/internal/ruler/source"
)

// reportVerb holds the flags of weir report.
type reportVerb struct {
	formats []string
	to      string
	chart   string
	env     string
	title   string
	json    cli.JSON[*report.Doc]
}

func newReportCommand(benches []suite.Bench) *cobra.Command {
	var v reportVerb
	cmd := &cobra.Command{
		Use:   "report FILE|DIR",
		Short: "Render results as text, Markdown, HTML, CSV, JSON or charts",
		Long: `Render earlier measurements. It reads
  - the result of an experiment (NAME.json), or all results in a directory
  - the directory of a run of weir bench, with its targets and CPU profiles; of weir
    bench all or peers, its index
  - a report that was written as JSON
  - a CPU, heap or other profile of pprof (.pb.gz)

Summaries and findings are computed again from the samples. The HTML page includes its
charts, needs no other files, and prints well. A profile does not say where it was
taken, and weir refuses figures without their environment: name a result of the same
run with --env, or give --env here if it was this machine.`,
		Example: `  weir report out/bench-proxy -o html --to report.html
  weir report out/bench-proxy -o md,csv,svg --to report
  weir report result.json -o svg --chart 2 > latency.svg
  weir report cpu.pb.gz --env here --to cpu.html`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			formats, err := v.chosen()
			if err != nil {
				return cli.UsageError(err)
			}
			doc, err := source.Source{Benches: benches, Env: v.env, Title: v.title}.Load(args[0])
			if err != nil {
				return err
			}
			if v.chart != "" {
				if doc, err = doc.PickChart(v.chart); err != nil {
					return cli.UsageError(fmt.Errorf("--chart: %w", err))
				}
			}
			return v.write(doc, formats, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringSliceVarP(&v.formats, "output", "o", nil, "formats: "+formatNames()+" (default by the extension of --to, otherwise text)")
	f.StringVar(&v.to, "to", "", "`FILE` to write, or directory when there are several formats; charts as SVG get a file each")
	f.StringVar(&v.chart, "chart", "", "only this chart, by its number or the start of its title")
	f.StringVar(&v.env, "env", "", "where a profile was taken: a result of the same run, or here")
	f.StringVar(&v.title, "title", "", "title, instead of the source's")
	v.json.Flag(f, "print the report as JSON")
	for name, values := range map[string][]string{"output": strings.Split(formatNames(), ", "), "env": {"here"}} {
		err := cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
		if err != nil {
			panic(fmt.Sprintf("weir report: flag --%s: %v", name, err)) // it is defined above
		}
	}
	return cmd
}

// formatNames lists the formats for help and errors.
func formatNames() string {
	var names []string
	for _, f := range report.Formats() {
		names = append(names, string(f))
	}
	return strings.Join(names, ", ")
}

// chosen returns the requested formats.
func (v *reportVerb) chosen() ([]report.Format, error) {
	names := v.formats
	if v.json.Given() {
		if len(names) > 0 || v.to != "" {
			return nil, errors.New("--json prints the report: use it without --output and --to")
		}
		names = []string{string(report.FormatJSON)}
	}
	if len(names) == 0 {
		name := string(report.FormatText)
		if ext := strings.TrimPrefix(filepath.Ext(v.to), "."); ext != "" {
			name = map[string]string{"txt": "text", "htm": "html", "markdown": "md"}[ext]
			if name == "" {
				name = ext
			}
		}
		names = []string{name}
	}
	var out []report.Format
	for _, n := range names {
		f := report.Format(n)
		if !slices.Contains(report.Formats(), f) {
			return nil, fmt.Errorf("no format %q: want %s", n, formatNames())
		}
		if !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	if len(out) > 1 && v.to == "" {
		return nil, errors.New("several formats need a directory: name it with --to")
	}
	return out, nil
}

// write renders all formats. It writes nothing if a report is refused.
func (v *reportVerb) write(doc *report.Doc, formats []report.Format, stdout io.Writer) error {
	if v.to == "" {
		return doc.Write(stdout, formats[0])
	}
	info, err := os.Stat(v.to)
	isDir := err == nil && info.IsDir()
	if len(formats) == 1 && !isDir && (filepath.Ext(v.to) != "" || formats[0] != report.FormatSVG) {
		return writeReportFile(doc, formats[0], v.to, stdout)
	}
	if err := os.MkdirAll(v.to, 0o755); err != nil {
		return fmt.Errorf("make directory of the report: %w", err)
	}
	for _, f := range formats {
		if f == report.FormatSVG {
			for _, c := range doc.ChartDocs() {
				if err := writeReportFile(c.Doc, f, filepath.Join(v.to, c.Name+".svg"), stdout); err != nil {
					return err
				}
			}
			continue
		}
		if err := writeReportFile(doc, f, filepath.Join(v.to, "report."+string(f)), stdout); err != nil {
			return err
		}
	}
	return nil
}

// writeReportFile writes one file and prints its name.
func writeReportFile(doc *report.Doc, f report.Format, path string, stdout io.Writer) error {
	var b bytes.Buffer
	if err := doc.Write(&b, f); err != nil {
		return err
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	fmt.Fprintln(stdout, path)
	return nil
}
