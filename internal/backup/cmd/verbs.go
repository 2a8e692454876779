// Package backupcmd is the command line of weir backup and of all verbs that read or
// keep what it writes.
package backupcmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/cli"
)

// Verbs returns the verbs of this part of weir.
func Verbs() []*cobra.Command {
	verbs := []*cobra.Command{
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
	for _, v := range verbs {
		v.PersistentPreRun = func(cmd *cobra.Command, _ []string) { announce(cmd) }
	}
	return verbs
}

// announce has storages say on the error stream what keeps them waiting, unless --quiet is given.
func announce(cmd *cobra.Command) {
	if quiet := cmd.Flag("quiet"); quiet != nil && quiet.Changed {
		return
	}
	out, clear := cmd.ErrOrStderr(), ""
	if terminalWidth(out) != nil {
		clear = "\r\x1b[K" // the bar of the progress
	}
	cmd.SetContext(archive.WithNotice(cmd.Context(), func(line string) { fmt.Fprintln(out, clear+line) }))
}
