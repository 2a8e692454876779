package cli

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/version"
)

// newVersionCommand is the one verb that is of no product.
func newVersionCommand() *cobra.Command {
	var asJSON, verbose bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of weir",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(version.Current())
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
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one line of JSON")
	return cmd
}
