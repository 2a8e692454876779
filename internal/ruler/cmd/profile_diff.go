package rulercmd

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject"
	"github.com/weirdb/weir/internal/ruler/profile/study"
	"github.com/weirdb/weir/internal/ruler/report"
)

func newProfileDiffCommand() *cobra.Command {
	format := "text"
	var asJSON cli.JSON[*report.Doc]
	cmd := &cobra.Command{
		Use:   "diff BEFORE AFTER",
		Short: "Compare two profiles, segment by segment",
		Long: `Compare the cases that two results of weir profile have in common: throughput,
latency, CPU, and the time in each segment, with an interval and a verdict for each.
Each argument is a result file, or a directory that holds one.`,
		Example: "  weir profile diff out/before/profile-postgres.json out/after/profile-postgres.json",
		Args:    cobra.ExactArgs(2),
		PreRunE: func(*cobra.Command, []string) error {
			if !slices.Contains(printable, report.Format(format)) {
				return fmt.Errorf("--output %q: want text, md, csv, html or json", format)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			before, err := oneResult(args[0])
			if err != nil {
				return err
			}
			after, err := oneResult(args[1])
			if err != nil {
				return err
			}
			doc, err := study.Diff(before, after)
			if err != nil {
				return err
			}
			if asJSON.Given() {
				format = string(report.FormatJSON)
			}
			return doc.Write(cmd.OutOrStdout(), report.Format(format))
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", format, "what to print: text, md, csv, html or json")
	asJSON.Flag(cmd.Flags(), "print the comparison as JSON")
	cli.Words(cmd, "output", "text", "md", "csv", "html", "json")
	return cmd
}

// oneResult reads the only result of a file or a directory.
func oneResult(path string) (*bench.Result, error) {
	results, err := bench.ReadPath(path, subject.All()...)
	if err != nil {
		return nil, err
	}
	if len(results) != 1 {
		return nil, fmt.Errorf("%s holds %d results: name one file", path, len(results))
	}
	return results[0], nil
}
