package backupcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/backup/archive"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	dumpmy "github.com/weirdb/weir/internal/backup/mysql"
	"github.com/weirdb/weir/internal/backup/notice"
	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/wire/binlog"
)

// Pauses before reconnecting.
const (
	firstBinlogRetry = time.Second
	lastBinlogRetry  = 30 * time.Second
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

	mu     sync.Mutex // guards status: another goroutine writes metrics
	status binlogStatus
}

// binlogStatus is the progress of the archive.
type binlogStatus struct {
	connected, proven bool
	position          binlog.Position
	archivedAt        time.Time
	segments          int
	reconnects        int
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
		if v.options.Start, err = parsePosition(v.start); err != nil {
			return fmt.Errorf("--start %w", err)
		}
	}
	return nil
}

// parsePosition parses FILE:POS.
func parsePosition(text string) (binlog.Position, error) {
	i := strings.LastIndexByte(text, ':')
	if i > 0 {
		pos, err := strconv.ParseUint(text[i+1:], 10, 63)
		if err == nil && pos >= uint64(len(binlog.Magic)) {
			return binlog.Position{File: text[:i], Pos: pos}, nil
		}
	}
	return binlog.Position{}, fmt.Errorf("%q: want FILE:POS, such as binlog.000042:4", text)
}

// run archives until ctx ends.
func (v *binlogVerb) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	if v.options.Storage, err = archive.OpenStorage(ctx, v.to); err != nil {
		return err
	}
	if v.log == "" {
		id, err := dumpmy.ServerID(ctx, v.options.DSN)
		if err != nil {
			return err
		}
		v.log = dumpmy.DefaultLogName(id)
	}
	v.options.Dir = dumpmy.LogDir(v.log)
	v.options.Opened = func(p binlog.Position) {
		v.update(func(s *binlogStatus) { s.connected, s.proven = true, true })
		from := p.String()
		if p.IsZero() {
			from = "the oldest that the server has"
		}
		v.say(stderr, "archiving the binary log into %s of %s, from %s on", v.log, placeText(v.to), from)
	}
	v.options.Archived = func(p binlog.Position) {
		v.update(func(s *binlogStatus) {
			s.position, s.archivedAt = p, time.Now()
			s.segments++
		})
	}
	stop := v.writeMetrics(stderr)
	err = v.follow(ctx, stderr)
	err = errors.Join(err, stop())
	if err != nil {
		return binlogHint(err)
	}
	s := v.now()
	switch {
	case v.json.Given():
		return v.json.Print(stdout, binlogOutcome{v.log, placeText(v.to), s.position.String(), s.segments, s.reconnects})
	case v.quiet:
		return nil
	}
	_, err = fmt.Fprintf(stdout, "binary log %s kept up to %s, %d segments more\n", v.log, s.position, s.segments)
	return err
}

// follow archives over one connection after the other.
func (v *binlogVerb) follow(ctx context.Context, stderr io.Writer) error {
	pause, progress := firstBinlogRetry, 0
	for {
		end, err := dumpmy.StreamBinlog(ctx, v.options)
		v.update(func(s *binlogStatus) { s.position, s.connected = end, false })
		switch {
		case err == nil && (ctx.Err() != nil || v.options.UntilEnd):
			return nil
		case err == nil:
			err = errors.New("the server has ended the stream")
		case ctx.Err() != nil, !v.now().proven, lasting(err):
			return err
		}
		if s := v.now(); s.segments > progress {
			pause, progress = firstBinlogRetry, s.segments
		}
		v.say(stderr, "%v; trying again in %v", err, pause)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, lastBinlogRetry)
		v.update(func(s *binlogStatus) { s.reconnects++ })
	}
}

// lasting reports whether a retry cannot help.
func lasting(err error) bool {
	var unavailable *binlog.UnavailableError
	return errors.As(err, &unavailable) || errors.Is(err, my.ErrLogGap) || errors.Is(err, dumpmy.ErrOtherServer)
}

// binlogHint adds to an error about a gap what to do about it.
func binlogHint(err error) error {
	if errors.Is(err, binlog.ErrPurged) || errors.Is(err, binlog.ErrPosition) || errors.Is(err, my.ErrLogGap) {
		return fmt.Errorf("a gap: %w; --log NAME begins another log, which can be replayed on backups that are taken after that", err)
	}
	return err
}

func (v *binlogVerb) say(w io.Writer, format string, args ...any) {
	if !v.quiet {
		fmt.Fprintf(w, time.Now().UTC().Format(time.RFC3339)+" "+format+"\n", args...)
	}
}

func (v *binlogVerb) update(change func(*binlogStatus)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	change(&v.status)
}

func (v *binlogVerb) now() binlogStatus {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.status
}

// writeMetrics writes metrics every few seconds until stop is called, and then once more.
func (v *binlogVerb) writeMetrics(stderr io.Writer) (stop func() error) {
	if v.metricsFile == "" {
		return func() error { return nil }
	}
	ended := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			if err := writeBinlogMetrics(v.metricsFile, v.log, v.now()); err != nil {
				v.say(stderr, "--metrics-file: %v", err)
			}
			select {
			case <-ended:
				return
			case <-time.After(metricsInterval):
			}
		}
	})
	return func() error {
		close(ended)
		wait.Wait()
		return writeBinlogMetrics(v.metricsFile, v.log, v.now())
	}
}

func writeBinlogMetrics(path, log string, s binlogStatus) error {
	labels := fmt.Sprintf("{log=%q}", log)
	connected := 0.0
	if s.connected {
		connected = 1
	}
	metrics := []notice.Metric{
		{Name: "weir_binlog_connected", Help: "Whether log is being received.", Labels: labels, Value: connected},
		{Name: "weir_binlog_segments_total", Help: "Segments completed since the start.", Labels: labels, Value: float64(s.segments)},
		{Name: "weir_binlog_reconnects_total", Help: "Connections after the first since the start.", Labels: labels, Value: float64(s.reconnects)},
	}
	if !s.position.IsZero() {
		_, digits, _ := strings.Cut(s.position.File, ".")
		if number, err := strconv.ParseFloat(digits, 64); err == nil {
			metrics = append(metrics, notice.Metric{Name: "weir_binlog_file", Help: "Number of the server's file up to which log is kept.", Labels: labels, Value: number})
		}
		metrics = append(metrics, notice.Metric{Name: "weir_binlog_position_bytes", Help: "Position in that file.", Labels: labels, Value: float64(s.position.Pos)})
	}
	if !s.archivedAt.IsZero() {
		metrics = append(metrics, notice.Metric{Name: "weir_binlog_kept_timestamp_seconds", Help: "When log was kept last.", Labels: labels, Value: float64(s.archivedAt.UnixMilli()) / 1000})
	}
	return notice.WriteTextfile(path, metrics)
}
