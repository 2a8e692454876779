// Package backupcmd is the command line of weir backup and of all verbs that read or
// keep what it writes.
package backupcmd

import (
	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
)

// Verbs returns the verbs of this part of weir.
func Verbs() []*cobra.Command {
	return []*cobra.Command{
		newBackupCommand(),
		newRestoreCommand(),
		newWALFetchCommand(),
		// Where these were before they stood below backup.
		cli.Moved(newVerifyCommand(), "backup verify"),
		cli.Moved(newListCommand(), "backup list"),
		cli.Moved(newPruneCommand(), "backup prune"),
		cli.Moved(newCatCommand(), "backup cat"),
		cli.Moved(newScheduleCommand(), "backup schedule"),
	}
}
