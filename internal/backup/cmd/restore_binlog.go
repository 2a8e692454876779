package backupcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/binlog"
	dumpmy "github.com/weirdb/weir/internal/backup/mysql"
	"github.com/weirdb/weir/internal/cli"
)

// restoreLog is the part of `weir restore` that replays an archived binary log after a backup
// of MySQL or MariaDB was restored.
type restoreLog struct {
	name     string
	gtid     string
	position string
	latest   bool

	on     bool // a replay is requested
	target dumpmy.LogTarget
	place  string // of the log
	label  string
}

func (l *restoreLog) add(f *pflag.FlagSet) {
	f.BoolVar(&l.latest, "target-latest", false, "MySQL and MariaDB: replay all archived log")
	f.StringVar(&l.gtid, "target-gtid", "", "MySQL and MariaDB: replay log up to this transaction, inclusive")
	f.StringVar(&l.position, "target-position", "", "MySQL and MariaDB: replay log up to `FILE:POS`, the end of a transaction")
	f.StringVar(&l.name, "log", "", "MySQL and MariaDB: which archived log (default the one that fits the backup)")
}

// logFlags request a replay or configure it.
var logFlags = []string{"target-latest", "target-gtid", "target-position", "log"}

// used returns a flag about a binary log that was given, or "".
func (l *restoreLog) used(f *pflag.FlagSet) string {
	for _, name := range logFlags {
		if f.Changed(name) {
			return name
		}
	}
	return ""
}

// complete validates the flags of a restore into a server.
func (l *restoreLog) complete(f *pflag.FlagSet, v *restoreVerb) (err error) {
	if familyOf(v.options.DSN) != familyMySQL {
		if name := l.used(f); name != "" {
			return fmt.Errorf("--%s replays the binary log of MySQL or MariaDB; PostgreSQL's log is for --to-dir", name)
		}
		return nil
	}
	given := 0
	for _, name := range []string{"target-time", "target-gtid", "target-position", "target-latest"} {
		if f.Changed(name) {
			given++
		}
	}
	switch {
	case given > 1:
		return errors.New("--target-time, --target-gtid, --target-position, --target-latest: one of them")
	case given == 0:
		for _, name := range []string{"log", "log-from", "label"} {
			if f.Changed(name) {
				return fmt.Errorf("--%s needs --target-time, --target-gtid, --target-position or --target-latest", name)
			}
		}
		return nil
	}
	l.on = true
	for _, name := range []string{
		"target", "rename", "schema", "exclude-schema", "table", "exclude-table", "exclude-table-data", "schema-only", "data-only",
		"resume", "keep-going", "dry-run",
	} {
		if f.Changed(name) {
			return fmt.Errorf("--%s: log is replayed on whole databases under their own names, in one go", name)
		}
	}
	l.place, l.label = v.dir.logFrom, v.dir.label
	if v.dir.time != "" {
		if l.target.Time, err = parseTargetTime(v.dir.time); err != nil {
			return err
		}
	}
	if l.position != "" {
		if l.target.Position, err = binlog.ParsePosition(l.position); err != nil {
			return fmt.Errorf("--target-position %w", err)
		}
	}
	if l.gtid != "" {
		if l.target.GTID, err = binlog.ParseGTID(l.gtid); err != nil {
			return fmt.Errorf("--target-gtid %w", err)
		}
	}
	return nil
}

// choose finds the newest backup from which the target can be reached.
func (l *restoreLog) choose(ctx context.Context, place string) (string, error) {
	repo, err := archive.OpenRepository(ctx, place)
	if err != nil {
		return "", err
	}
	return binlog.ChooseBackup(ctx, repo, l.label, l.target)
}

// prepare checks the replay of a backup's log, and prevents events from running until release
// is called.
func (l *restoreLog) prepare(ctx context.Context, place string, m *archive.Manifest, v *restoreVerb, stderr io.Writer) (_ *binlog.Replay, release func() error, err error) {
	if l.place != "" {
		place = l.place
	}
	if place == "-" || strings.HasSuffix(place, ".tar") {
		return nil, nil, cli.UsageError(errors.New("--log-from: a stream has no log beside it; where is it?"))
	}
	o := binlog.ReplayOptions{DSN: v.options.DSN, Place: place, Log: l.name, Target: l.target, Database: v.options.Database, Create: v.options.Create}
	if o.Into, err = databaseOf(o.DSN); err != nil {
		return nil, nil, cli.UsageError(err)
	}
	p, err := binlog.Prepare(ctx, m, o)
	var renamed *binlog.RenamedError
	switch {
	case errors.As(err, &renamed):
		return nil, nil, cli.UsageError(err)
	case err != nil:
		return nil, nil, err
	}
	if !v.quiet {
		printWarnings(stderr, p.Warnings)
	}
	held, release, err := p.HoldEvents(ctx)
	if err == nil && held && !v.quiet {
		fmt.Fprintln(stderr, "events of the server do not run until the log is replayed (event_scheduler is OFF)")
	}
	return p, release, err
}

// replay replays the log.
func (l *restoreLog) replay(ctx context.Context, p *binlog.Replay, quiet bool, stderr io.Writer) (*binlog.Outcome, error) {
	if short := p.Short(); !quiet && short != "" {
		fmt.Fprintln(stderr, "warning:", short)
	}
	return p.Run(ctx)
}
