// Package backupcmd is the command line of weir backup, and of the verbs that read and manage
// its archives.
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
		// The old names of verbs that are now below backup.
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

// announce makes storages report on standard error what they wait for, unless --quiet is given.
func announce(cmd *cobra.Command) {
	if quiet := cmd.Flag("quiet"); quiet != nil && quiet.Changed {
		return
	}
	out, clear := cmd.ErrOrStderr(), ""
	if terminalWidth(out) != nil {
		clear = "\r\x1b[K" // clears the progress bar
	}
	cmd.SetContext(archive.WithNotice(cmd.Context(), func(line string) { fmt.Fprintln(out, clear+line) }))
}
