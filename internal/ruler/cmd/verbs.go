// Package rulercmd is the command line of what measures: weir bench, profile,
// report, doctor and demo.
package rulercmd

import (
	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
)

// Verbs returns the verbs of this part of weir. weir makes the whole program,
// for benchmarks that run verbs of it.
func Verbs(weir func() *cobra.Command) []*cobra.Command {
	return []*cobra.Command{
		newBenchCommand(weir),
		newProfileCommand(),
		newReportCommand(),
		newDoctorCommand(),
		newDemoCommand(),
		cli.Below("outbox", newOutboxBench()),
	}
}
