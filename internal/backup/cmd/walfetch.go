package backupcmd

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/wal"
	"github.com/weirdb/weir/internal/cli"
)

// exitAbortRecovery makes a server abort its recovery. The server takes a lower code for "the
// file does not exist", which is the end of the log: a storage that is unreachable for a moment
// must not look like that.
const exitAbortRecovery = 126

func newWALFetchCommand() *cobra.Command {
	var keys keyFlags
	var system string
	cmd := &cobra.Command{
		Use:   "wal-fetch PLACE FILE PATH",
		Short: "Fetch a file of archived log, as PostgreSQL's restore_command",
		Long: `Fetch one file of the log that weir backup wal has archived, verify it, and write it
to PATH. weir restore --to-dir makes this the server's restore_command.

Exit codes: 0 fetched, 1 there is no such file, 126 it could not be fetched. 126 makes
the server stop, instead of taking this for the end of the log.`,
		Example: `  restore_command = 'weir wal-fetch --system 7432840651712831034 /backups "%f" "%p"'`,
		Args:    cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts, err := keys.options()
			if err != nil {
				return cli.Exit(exitAbortRecovery, err)
			}
			storage, err := archive.OpenStorage(cmd.Context(), args[0])
			if err != nil {
				return cli.Exit(exitAbortRecovery, err)
			}
			err = fetchTo(args[2], func(w io.Writer) error {
				return wal.Fetch(cmd.Context(), storage, system, args[1], opts, w)
			})
			switch {
			case errors.Is(err, archive.ErrNotExist): // routine: servers ask for more files than there can be
				return fmt.Errorf("%s is not in the archive", args[1])
			case err != nil:
				return cli.Exit(exitAbortRecovery, hinted(err))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&system, "system", "", "system identifier of the cluster (required)")
	keys.add(cmd.Flags())
	_ = cmd.MarkFlagRequired("system") // fails only for a flag that does not exist
	return cmd
}

// fetchTo writes a file, which gets its name when it is complete.
func fetchTo(path string, fetch func(io.Writer) error) (err error) {
	f, err := os.OpenFile(path+".weir", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write log: %w", err)
	}
	if err = errors.Join(fetch(f), f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return os.Rename(f.Name(), path)
}
