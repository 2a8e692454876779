package backupcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/binlog"
	dumpmy "github.com/weirdb/weir/internal/backup/mysql"
	"github.com/weirdb/weir/internal/cli"
)

// binlogVerb is the configuration of `weir backup binlog`.
type binlogVerb struct {
	options     dumpmy.BinlogOptions
	to          string
	log         string
	start       string
	metricsFile string
	encrypt     [3]string // rejected
	json        cli.JSON[binlogOutcome]
	quiet       bool
}

// binlogOutcome is the output of `weir backup binlog --json`.
type binlogOutcome struct {
	Log        string `json:"log"`        // name of the log in the archive
	Location   string `json:"location"`   // where the archive is
	Position   string `json:"position"`   // up to which the log is archived
	Segments   int    `json:"segments"`   // since the start
	Reconnects int    `json:"reconnects"` // how often weir has reconnected to the server
}

func newBackupBinlogCommand() *cobra.Command {
	var v binlogVerb
	cmd := &cobra.Command{
		Use:   "binlog DSN",
		Short: "Archive the binary log of a MySQL or MariaDB server, continuously",
		Long: `Receive the binary log of a MySQL or MariaDB server as a replica does, and archive it
beside the backups, in binlog/NAME/. A transaction is archived at most
--flush-interval after its commit; if the server is lost, at most the transactions of
that interval are lost with it. weir restore replays the log on a backup (--target-time
and the other targets).

It runs until it is interrupted, and reconnects by itself. After a crash it continues
after the last archived transaction. The account needs REPLICATION SLAVE, and
REPLICATION CLIENT (MariaDB: BINLOG MONITOR).

The server must keep its log while weir does not receive it: see its setting
binlog_expire_logs_seconds. If it has removed log that was not archived, the archive
has a gap. That is an error: start another log with --log NAME, and take a backup.
Archived logs are not encrypted.

Exit codes: 0 interrupted, or done with --until-now, 1 failed, 2 usage.`,
		Example: `  weir backup binlog mysql://replicator@db/ --to /backups --metrics-file /var/lib/node_exporter/weir_binlog.prom
  weir backup binlog mysql://replicator@db/ --to /backups --until-now
  weir backup binlog mysql://replicator@db/ --to /backups --log after-gap --start binlog.000042:4`,
		Args: cobra.ExactArgs(1),
		PreRunE: func(_ *cobra.Command, args []string) error {
			v.options.DSN = args[0]
			return v.complete()
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return v.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f, o := cmd.Flags(), &v.options
	f.StringVar(&v.to, "to", "", "where to: DIR or s3://BUCKET/PREFIX (required)")
	f.StringVar(&v.log, "log", "", "name of the log in that place (default derived from the server's id)")
	f.StringVar(&v.start, "start", "", "`FILE:POS` to start at when nothing is archived yet (default the oldest log that the server has)")
	f.DurationVar(&o.Every, "flush-interval", 5*time.Second, "longest time from a commit until it is archived")
	f.BoolVar(&o.UntilEnd, "until-now", false, "exit when all log that the server has now is archived")
	f.StringVar(&v.metricsFile, "metrics-file", "", "file for node_exporter's textfile collector, written atomically")
	v.json.Flag(cmd.Flags(), "print the outcome as JSON")
	f.BoolVarP(&v.quiet, "quiet", "q", false, "print errors only")
	cli.Renamed(cmd, "until-end", "until-now")
	for i, name := range encryptFlags {
		f.StringVar(&v.encrypt[i], name, "", "")
		f.Lookup(name).Hidden = true // defined only to be rejected by name
	}
	return cmd
}

// encryptFlags are flags of backups that archived binary logs do not support: to continue a
// log, weir has to read its end.
var encryptFlags = [3]string{"encrypt-recipient", "encrypt-recipients-file", "encrypt-passphrase-file"}

func (v *binlogVerb) complete() (err error) {
	for i, name := range encryptFlags {
		if v.encrypt[i] != "" {
			return fmt.Errorf("--%s: archived binary logs cannot be encrypted; choose a place that is", name)
		}
	}
	switch {
	case familyOf(v.options.DSN) != familyMySQL:
		return fmt.Errorf("binary logs are of MySQL and MariaDB, and the DSN names a server of %s", familyOf(v.options.DSN))
	case v.to == "":
		return errors.New("no place for the log: give --to a directory or s3://BUCKET/PREFIX")
	case v.to == "-" || strings.HasSuffix(v.to, ".tar"):
		return errors.New("--to: a log goes into a directory or a bucket, beside backups")
	case v.options.Every <= 0:
		return fmt.Errorf("--flush-interval %v: want more than 0", v.options.Every)
	}
	if v.log != "" {
		if err := dumpmy.CheckLogName(v.log); err != nil {
			return fmt.Errorf("--log: %w", err)
		}
	}
	if v.start != "" {
		if v.options.Start, err = binlog.ParsePosition(v.start); err != nil {
			return fmt.Errorf("--start %w", err)
		}
	}
	return nil
}

// run archives until ctx ends.
func (v *binlogVerb) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	if v.options.Storage, err = archive.OpenStorage(ctx, v.to); err != nil {
		return err
	}
	s, err := binlog.Follow(ctx, binlog.FollowOptions{
		Stream: v.options, Log: v.log, Place: placeText(v.to), MetricsFile: v.metricsFile, Say: sayTo(stderr, v.quiet),
	})
	switch {
	case err != nil:
		return err
	case v.json.Given():
		return v.json.Print(stdout, binlogOutcome{s.Log, placeText(v.to), s.Position.String(), s.Segments, s.Reconnects})
	case v.quiet:
		return nil
	}
	_, err = fmt.Fprintf(stdout, "binary log %s kept up to %s, %d segments more\n", s.Log, s.Position, s.Segments)
	return err
}
