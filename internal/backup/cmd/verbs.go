// Package backupcmd is the command line of weir backup and of all verbs that read or
// keep what it writes.
package backupcmd

import (
	"github.com/spf13/cobra"
)

// Verbs returns the verbs of this part of weir.
func Verbs() []*cobra.Command {
	return []*cobra.Command{
		newBackupCommand(),
		newRestoreCommand(),
		newVerifyCommand(),
		newListCommand(),
		newPruneCommand(),
		newCatCommand(),
		newScheduleCommand(),
		newWALFetchCommand(),
	}
}
