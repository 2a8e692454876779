package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/version"
)

// newVersionCommand returns the verb version.
func newVersionCommand() *cobra.Command {
	var asJSON JSON[version.Report]
	var verbose bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of weir",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON.Given() {
				return asJSON.Line(cmd.OutOrStdout(), version.Current())
			}
			out := cmd.OutOrStdout()
			if _, err := fmt.Fprintln(out, version.Line()); err != nil || !verbose {
				return err
			}
			r := version.Current()
			for _, fact := range [][2]string{{"commit", r.Commit}, {"time", r.Time}, {"tags", r.Tags}} {
				if fact[1] != "" {
					fmt.Fprintf(out, "%s %s\n", fact[0], fact[1])
				}
			}
			for _, module := range version.Modules() {
				fmt.Fprintln(out, "module", module)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&verbose, "verbose", false, "also print the build's settings and the modules linked into it")
	asJSON.Flag(cmd.Flags(), "print one line of JSON")
	return cmd
}
