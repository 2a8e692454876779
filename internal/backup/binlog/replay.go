package binlog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/backup/archive"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	dumpmy "github.com/weirdb/weir/internal/backup/mysql"
	loadmy "github.com/weirdb/weir/internal/backup/restore/mysql"
)

// ReplayOptions say which archived log is replayed on which server.
type ReplayOptions struct {
	DSN    string           // of the server into which the backup is restored
	Place  string           // of the archive with the log
	Log    string           // its name there. Default: the one that fits the backup
	Target dumpmy.LogTarget // where to end. Default: the end of the log

	// Database restricts the replay to a database of the backup. Default: all of them; for a
	// backup of a whole server also those that were created since.
	Database string
	// Into is the database that the DSN names, and Create whether the restore creates its
	// database under the backup's name.
	Into   string
	Create bool
}

// RenamedError is the error about a backup of one database that is restored under another
// name.
type RenamedError struct{ Database, Into string }

func (e *RenamedError) Error() string {
	return fmt.Sprintf("the log is that of database %s, and --to names %s: log is replayed under the original name", e.Database, e.Into)
}

// Replay is a checked replay, ready to begin.
type Replay struct {
	// Warnings are what the replay cannot do exactly.
	Warnings []string

	options loadmy.ReplayOptions
	log     dumpmy.Log
	check   *dumpmy.LogCheck
	target  dumpmy.LogTarget
}

// Outcome is the outcome of a replay.
type Outcome struct {
	Log          string    `json:"log"`                   // name of the log in the archive
	From         string    `json:"from"`                  // the position at which the replay began
	Position     string    `json:"position"`              // after the last transaction
	GTID         string    `json:"gtid,omitempty"`        // the transactions that the server has after the replay
	Transactions int       `json:"transactions"`          // number of transactions that were replayed
	LogEnd       string    `json:"log_end"`               // the position up to which the log reaches
	LogEndTime   time.Time `json:"log_end_time,omitzero"` // when its last transaction was committed
}

// Prepare finds the log of a backup and reads it, so that problems with it are reported before
// anything is restored.
func Prepare(ctx context.Context, m *archive.Manifest, o ReplayOptions) (*Replay, error) {
	if why, err := past(o.Target, m.Summary); err != nil || why != "" {
		return nil, errors.Join(err, fmt.Errorf("the target cannot be reached: %s", why))
	}
	databases, err := databases(m, o)
	if err != nil {
		return nil, err
	}
	storage, err := archive.OpenStorage(ctx, o.Place)
	if err != nil {
		return nil, err
	}
	p := &Replay{target: o.Target}
	if p.log, err = dumpmy.LogOf(ctx, storage, m.Summary, o.Log); err != nil {
		return nil, fmt.Errorf("find the archived log: %w", err)
	}
	from := dumpmy.ManifestPosition(m.Position)
	if p.check, err = dumpmy.CheckLog(ctx, storage, p.log, from, o.Target); err != nil {
		return nil, fmt.Errorf("read the archived log: %w", err)
	}
	if !p.check.OK() {
		return nil, fmt.Errorf("nothing was restored: %s", strings.Join(p.check.Problems, "; "))
	}
	if err := loadmy.CheckReplay(ctx, o.DSN); err != nil {
		return nil, fmt.Errorf("nothing was restored: %w", err)
	}
	p.options = loadmy.ReplayOptions{
		DSN: o.DSN, Storage: storage, Dir: p.log.Dir(), From: from, Settled: dumpmy.Settled(m), Databases: databases,
		Until: o.Target.Time, UntilGTID: o.Target.GTID,
	}
	if !o.Target.Position.IsZero() {
		p.options.UntilPosition = p.check.Until
	}
	if p.Warnings, err = loadmy.PlanReplay(ctx, p.options); err != nil {
		return nil, fmt.Errorf("nothing was restored: %w", err)
	}
	return p, nil
}

// databases returns the databases whose changes are replayed: nil for all.
func databases(m *archive.Manifest, o ReplayOptions) ([]string, error) {
	if m.Attributes[dumpmy.AttrTables] != "" {
		return nil, fmt.Errorf("backup %s is of some tables, or of definitions only: log cannot be replayed on it", m.ID)
	}
	if o.Database != "" {
		return []string{o.Database}, nil
	}
	if m.Scope == "cluster" && m.Attributes[dumpmy.AttrDatabases] == "" {
		return nil, nil // including those that were created since
	}
	var names []string
	for _, d := range m.Databases {
		names = append(names, d.Name)
	}
	if m.Scope != "cluster" && !o.Create && len(names) == 1 && o.Into != names[0] {
		return nil, &RenamedError{names[0], o.Into}
	}
	return names, nil
}

// HoldEvents prevents the server's events from running until release is called. held reports
// whether any would have run.
func (p *Replay) HoldEvents(ctx context.Context) (held bool, release func() error, err error) {
	held, again, err := loadmy.HoldEvents(ctx, p.options.DSN)
	if err != nil {
		return false, nil, fmt.Errorf("nothing was restored: %w", err)
	}
	return held, func() error { return again(context.WithoutCancel(ctx)) }, nil
}

// Short returns a warning if the log ends before the target's time, or "".
func (p *Replay) Short() string {
	end := p.check.EndTime
	if end.IsZero() || !p.target.Time.After(end) {
		return ""
	}
	return fmt.Sprintf("the last transaction in the archived log is of %s, before the target: what came later is not there", end.UTC().Format(time.RFC3339))
}

// Run replays the log on the restored backup.
func (p *Replay) Run(ctx context.Context) (*Outcome, error) {
	r, err := loadmy.Replay(ctx, p.options)
	if err != nil {
		return nil, fmt.Errorf("the backup is restored, its log is not replayed to the target: %w; drop the databases and start over", err)
	}
	return &Outcome{
		Log: p.log.Name, From: p.options.From.String(), Position: r.Position.String(), GTID: r.GTID.String(),
		Transactions: r.Transactions, LogEnd: p.check.End, LogEndTime: p.check.EndTime,
	}, nil
}

// Verify reads the log that follows a backup. If the log does not reach back to the backup,
// that is a problem in the result.
func Verify(ctx context.Context, storage archive.Storage, m *archive.Manifest) (*dumpmy.LogCheck, error) {
	log, err := dumpmy.LogOf(ctx, storage, m.Summary, "")
	if errors.Is(err, my.ErrLogGap) {
		return &dumpmy.LogCheck{Problems: []string{err.Error()}}, nil
	}
	if err != nil {
		return nil, err
	}
	return dumpmy.CheckLog(ctx, storage, log, dumpmy.ManifestPosition(m.Position), dumpmy.LogTarget{})
}
