package rulercmd

import (
	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/ruler/bench/peers"
	"github.com/weirdb/weir/internal/ruler/bench/reference"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// newBenchCommand returns weir bench: the benchmarks of products, and the verbs that compare
// their results.
func newBenchCommand(benches []suite.Bench) *cobra.Command {
	cmd := suite.Command(benches...)
	cmd.AddCommand(reference.Command(benches), peers.Command(benches), newBenchDiffCommand(), newBenchGateCommand(), newBenchAACommand())
	return cmd
}
