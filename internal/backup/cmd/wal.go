package backupcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/notice"
	"github.com/weirdb/weir/internal/backup/wal"
	"github.com/weirdb/weir/internal/cli"
)

// walVerb is the configuration of `weir backup wal`.
type walVerb struct {
	options     wal.ReceiveOptions
	archive     archiveFlags
	to          string
	metricsFile string
	dropSlot    bool
	quiet       bool
	json        cli.JSON[walOutcome]
}

// walOutcome is the output of `weir backup wal --json`.
type walOutcome struct {
	System     string `json:"system"`     // identifier of the cluster
	Location   string `json:"location"`   // where the archive is
	Position   string `json:"position"`   // up to which the log is archived
	Timeline   uint32 `json:"timeline"`   // of position
	Segments   int64  `json:"segments"`   // completed since the start
	Reconnects int64  `json:"reconnects"` // how often weir has reconnected to the server
}

func newBackupWALCommand() *cobra.Command {
	var v walVerb
	cmd := &cobra.Command{
		Use:   "wal [DSN]",
		Short: "Receive the log of a PostgreSQL cluster into the archive, continuously",
		Long: `Receive the log (WAL) of a PostgreSQL cluster over the replication protocol, as a
standby does, and archive it beside base backups: each segment as soon as it is full,
and the unfinished one every --flush-interval. If the server is lost, at most the log
of that interval is lost with it.

It runs until it is interrupted, and reconnects by itself. After a crash it continues
after the last complete segment. A replication slot makes the server keep the log in
the meantime; when you stop archiving for good, remove the slot with --drop-slot, or
the server's disk fills up.

If the server has removed log that was not archived, the archive has a gap. That is an
error; --allow-gap continues after the gap. A base backup from before a gap cannot be
replayed past it.`,
		Example: `  weir backup wal postgres://replicator@db/ --to /backups --metrics-file /var/lib/node_exporter/weir_wal.prom
  weir backup wal postgres://replicator@db/ --to /backups --until-now
  weir backup wal postgres://replicator@db/ --drop-slot`,
		Args: cobra.MaximumNArgs(1),
		PreRunE: func(_ *cobra.Command, args []string) error {
			v.options.DSN = "postgres://"
			if len(args) > 0 {
				v.options.DSN = args[0]
			}
			return v.complete()
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if v.dropSlot {
				return wal.DropSlot(cmd.Context(), v.options.DSN, v.options.Slot)
			}
			return v.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f, o := cmd.Flags(), &v.options
	f.StringVar(&v.to, "to", "", "where to: DIR or s3://BUCKET/PREFIX (required)")
	f.StringVar(&o.Slot, "slot", wal.DefaultSlot, "replication slot, created if it does not exist")
	f.BoolVar(&o.Temporary, "temporary-slot", false, "use a slot that the server drops when the connection ends")
	f.BoolVar(&v.dropSlot, "drop-slot", false, "remove the slot and exit")
	f.DurationVar(&o.FlushInterval, "flush-interval", wal.DefaultFlushInterval, "how often the unfinished segment is archived")
	f.BoolVar(&o.AllowGap, "allow-gap", false, "continue after log that the server no longer has")
	f.BoolVar(&o.UntilNow, "until-now", false, "exit when all log that the server has now is archived")
	f.StringVar(&o.SpoolDir, "spool-dir", "", "directory for the segment that is being received")
	f.StringVar(&v.metricsFile, "metrics-file", "", "file for node_exporter's textfile collector, written atomically")
	v.archive.add(f)
	v.json.Flag(f, "print the outcome as JSON")
	f.BoolVarP(&v.quiet, "quiet", "q", false, "print errors only")
	return cmd
}

func (v *walVerb) complete() (err error) {
	switch {
	case familyOf(v.options.DSN) != familyPostgres:
		return fmt.Errorf("WAL is PostgreSQL's, and the DSN names a server of %s", familyOf(v.options.DSN))
	case v.options.FlushInterval <= 0:
		return fmt.Errorf("--flush-interval %v: want more than 0", v.options.FlushInterval)
	case v.dropSlot:
		return nil
	case v.to == "":
		return errors.New("no place for the log: give --to a directory or s3://BUCKET/PREFIX")
	}
	v.options.Archive, err = v.archive.options()
	return err
}

// run receives until ctx ends.
func (v *walVerb) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	storage, err := archive.OpenStorage(ctx, v.to)
	if err != nil {
		return err
	}
	v.options.Say = sayTo(stderr, v.quiet)
	var last atomic.Pointer[wal.Status] // goroutines of the receiver store it
	last.Store(&wal.Status{})
	v.options.Status = func(s wal.Status) { last.Store(&s) }
	stop := notice.KeepTextfile(v.metricsFile, func() []notice.Metric { return last.Load().Metrics() },
		func(err error) { v.options.Say("--metrics-file: %v", err) })
	err = wal.Receive(ctx, storage, v.options)
	err = errors.Join(err, stop())
	s := last.Load()
	switch {
	case err != nil:
		return err
	case v.json.Given():
		return v.json.Print(stdout, walOutcome{s.SystemID, placeText(v.to), s.Flushed.String(), s.Timeline, s.Segments, s.Reconnects})
	case v.quiet:
		return nil
	}
	_, err = fmt.Fprintf(stdout, "log of cluster %s kept up to %s on timeline %d, %d segments completed\n", s.SystemID, s.Flushed, s.Timeline, s.Segments)
	return err
}

// sayTo returns a function that prints messages with the time, one a line, for any number of
// goroutines.
func sayTo(w io.Writer, quiet bool) func(format string, args ...any) {
	var mu sync.Mutex
	return func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		if !quiet {
			fmt.Fprintf(w, time.Now().UTC().Format(time.RFC3339)+" "+format+"\n", args...)
		}
	}
}
