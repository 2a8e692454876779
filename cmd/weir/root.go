package main

import (
	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
)

// newRoot returns weir.
func newRoot() *cobra.Command { return cli.Root(verbs()...) }

// verbs are all that weir can do.
func verbs() []*cobra.Command {
	return []*cobra.Command{
		newVersionCommand(),
		newLabCommand(),
		newProxyCommand(),
		newOutboxCommand(), cli.Below("outbox", newOutboxBench()),
		newKVCommand(),
		newBenchCommand(newRoot), newProfileCommand(), newReportCommand(), newDoctorCommand(), newDemoCommand(),
		newBackupCommand(), newRestoreCommand(), newVerifyCommand(), newListCommand(), newPruneCommand(), newCatCommand(), newScheduleCommand(), newWALFetchCommand(),
	}
}
