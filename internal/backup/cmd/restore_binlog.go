package backupcmd

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/backup/archive"
	dumpmy "github.com/weirdb/weir/internal/backup/mysql"
	loadmy "github.com/weirdb/weir/internal/backup/restore/mysql"
	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/wire/binlog"
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

// replayOutcome is the outcome of a replay.
type replayOutcome struct {
	Log          string    `json:"log"`                   // name of the log in the archive
	From         string    `json:"from"`                  // the position at which the replay began
	Position     string    `json:"position"`              // after the last transaction
	GTID         string    `json:"gtid,omitempty"`        // the transactions that the server has after the replay
	Transactions int       `json:"transactions"`          // number of transactions that were replayed
	LogEnd       string    `json:"log_end"`               // the position up to which the log reaches
	LogEndTime   time.Time `json:"log_end_time,omitzero"` // when its last transaction was committed
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
		if l.target.Position, err = parsePosition(l.position); err != nil {
			return fmt.Errorf("--target-position %w", err)
		}
	}
	if l.gtid != "" {
		if l.target.GTID, err = parseGTID(l.gtid); err != nil {
			return fmt.Errorf("--target-gtid %w", err)
		}
	}
	return nil
}

// parseGTID parses one GTID as its server writes it: 0-1-42, or UUID:42 or UUID:TAG:42.
func parseGTID(text string) (binlog.GTID, error) {
	wrong := fmt.Errorf("%q: want one transaction, such as 0-1-42 (MariaDB) or 3e11fa47-71ca-11e1-9e33-c80aa9429562:42 (MySQL)", text)
	var g binlog.GTID
	if parts := strings.Split(text, ":"); len(parts) > 1 {
		id, err := hex.DecodeString(strings.ReplaceAll(parts[0], "-", ""))
		if err != nil || len(id) != len(g.UUID) || len(parts) > 3 {
			return g, wrong
		}
		g.UUID = [16]byte(id)
		if len(parts) == 3 {
			g.Tag = strings.ToLower(parts[1])
		}
		if g.Seq, err = strconv.ParseUint(parts[len(parts)-1], 10, 63); err != nil || g.Seq == 0 {
			return binlog.GTID{}, wrong
		}
		return g, nil
	}
	parts := strings.Split(text, "-")
	if len(parts) != 3 {
		return g, wrong
	}
	domain, err1 := strconv.ParseUint(parts[0], 10, 32)
	server, err2 := strconv.ParseUint(parts[1], 10, 32)
	seq, err3 := strconv.ParseUint(parts[2], 10, 64)
	if errors.Join(err1, err2, err3) != nil || seq == 0 {
		return g, wrong
	}
	return binlog.GTID{Domain: uint32(domain), Server: uint32(server), Seq: seq}, nil
}

// past returns why a target cannot be reached because it is before the backup, or "".
func (l *restoreLog) past(m archive.Summary) (string, error) {
	switch at := m.Position; {
	case !l.target.Time.IsZero() && l.target.Time.Before(at.Time):
		return fmt.Sprintf("backup %s shows %s, which is later", m.ID, at.Time.UTC().Format(time.RFC3339Nano)), nil
	case !l.target.GTID.IsZero() && at.GTID != "":
		set, err := binlog.ParseGTIDSet(at.GTID)
		if err != nil {
			return "", fmt.Errorf("backup %s: %w", m.ID, err)
		}
		if set.Contains(l.target.GTID) {
			return fmt.Sprintf("backup %s shows more than %s: it is at %s", m.ID, l.target.GTID, at.GTID), nil
		}
	case !l.target.Position.IsZero() && dumpmy.Before(l.target.Position, dumpmy.ManifestPosition(at)):
		return fmt.Sprintf("backup %s is at %s, which is after it", m.ID, dumpmy.ManifestPosition(at)), nil
	}
	return "", nil
}

// choose finds the newest backup from which the target can be reached.
func (l *restoreLog) choose(ctx context.Context, place string) (string, error) {
	repo, err := archive.OpenRepository(ctx, place)
	if err != nil {
		return "", err
	}
	entries, err := archive.List(ctx, repo, time.Now())
	if err != nil {
		return "", err
	}
	var fit []archive.Entry
	labels, servers := map[string]bool{}, map[string]bool{}
	reason := ""
	for _, e := range entries {
		m := e.Summary
		if e.State != archive.Complete || m.Engine == archive.PostgreSQL || m.Position.Binlog == "" || l.label != "" && m.Label != l.label {
			continue
		}
		labels[m.Label], servers[m.Server.SystemID] = true, true
		why, err := l.past(m)
		if err != nil {
			return "", err
		}
		if why != "" {
			reason = "; " + why
			continue
		}
		fit = append(fit, e)
	}
	switch {
	case len(servers) > 1:
		// Positions and GTIDs of one server mean nothing on another.
		return "", fmt.Errorf("%s holds backups of %d servers: name a backup by its ID", repo, len(servers))
	case len(labels) > 1:
		return "", fmt.Errorf("%s holds backups of %d labels: name one by --label, or a backup by its ID", repo, len(labels))
	case len(fit) == 0:
		return "", fmt.Errorf("%s holds no complete backup from which the target can be reached%s; weir backup list shows all backups", repo, reason)
	}
	// A partial backup cannot be used, and is rejected later with an explanation.
	for _, e := range slices.Backward(fit) {
		if !e.Summary.Partial {
			return e.ID, nil
		}
	}
	return fit[len(fit)-1].ID, nil
}

// replay is a checked replay, ready to begin.
type replay struct {
	options loadmy.ReplayOptions
	log     dumpmy.Log
	check   *dumpmy.LogCheck
}

// prepare finds the log of a backup and reads it, so that problems with it are reported before
// anything is restored.
func (l *restoreLog) prepare(ctx context.Context, place string, m *archive.Manifest, v *restoreVerb, stderr io.Writer) (*replay, error) {
	if l.place != "" {
		place = l.place
	}
	if place == "-" || strings.HasSuffix(place, ".tar") {
		return nil, cli.UsageError(errors.New("--log-from: a stream has no log beside it; where is it?"))
	}
	if why, err := l.past(m.Summary); err != nil || why != "" {
		return nil, errors.Join(err, fmt.Errorf("the target cannot be reached: %s", why))
	}
	databases, err := l.databases(m, v)
	if err != nil {
		return nil, err
	}
	storage, err := archive.OpenStorage(ctx, place)
	if err != nil {
		return nil, err
	}
	p := &replay{}
	if p.log, err = dumpmy.LogOf(ctx, storage, m.Summary, l.name); err != nil {
		return nil, fmt.Errorf("find the archived log: %w", err)
	}
	from := dumpmy.ManifestPosition(m.Position)
	if p.check, err = dumpmy.CheckLog(ctx, storage, p.log, from, l.target); err != nil {
		return nil, fmt.Errorf("read the archived log: %w", err)
	}
	if !p.check.OK() {
		return nil, fmt.Errorf("nothing was restored: %s", strings.Join(p.check.Problems, "; "))
	}
	if err := loadmy.CheckReplay(ctx, v.options.DSN); err != nil {
		return nil, fmt.Errorf("nothing was restored: %w", err)
	}
	p.options = loadmy.ReplayOptions{
		DSN: v.options.DSN, Storage: storage, Dir: p.log.Dir(), From: from, Settled: dumpmy.Settled(m), Databases: databases,
		Until: l.target.Time, UntilGTID: l.target.GTID,
	}
	if l.position != "" {
		p.options.UntilPosition = p.check.Until
	}
	warnings, err := loadmy.PlanReplay(ctx, p.options)
	if err != nil {
		return nil, fmt.Errorf("nothing was restored: %w", err)
	}
	if !v.quiet {
		printWarnings(stderr, warnings)
	}
	return p, nil
}

// databases returns the databases whose changes are replayed: nil for all.
func (l *restoreLog) databases(m *archive.Manifest, v *restoreVerb) ([]string, error) {
	o := v.options
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
	to, err := databaseOf(o.DSN)
	if err != nil {
		return nil, cli.UsageError(err)
	}
	if m.Scope != "cluster" && !o.Create && len(names) == 1 && to != names[0] {
		return nil, cli.UsageError(fmt.Errorf("the log is that of database %s, and --to names %s: log is replayed under the original name", names[0], to))
	}
	return names, nil
}

// hold prevents events from running until release is called.
func (p *replay) hold(ctx context.Context, dsn string, quiet bool, stderr io.Writer) (release func() error, err error) {
	held, again, err := loadmy.HoldEvents(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("nothing was restored: %w", err)
	}
	if held && !quiet {
		fmt.Fprintln(stderr, "events of the server do not run until the log is replayed (event_scheduler is OFF)")
	}
	return func() error { return again(context.WithoutCancel(ctx)) }, nil
}

// run replays the log.
func (p *replay) run(ctx context.Context, l *restoreLog, quiet bool, stderr io.Writer) (*replayOutcome, error) {
	if end := p.check.EndTime; !quiet && l.target.Time.After(end) && !end.IsZero() {
		fmt.Fprintf(stderr, "warning: the last transaction in the archived log is of %s, before the target: what came later is not there\n", end.UTC().Format(time.RFC3339))
	}
	r, err := loadmy.Replay(ctx, p.options)
	if err != nil {
		return nil, fmt.Errorf("the backup is restored, its log is not replayed to the target: %w; drop the databases and start over", err)
	}
	return &replayOutcome{
		Log: p.log.Name, From: p.options.From.String(), Position: r.Position.String(), GTID: r.GTID.String(),
		Transactions: r.Transactions, LogEnd: p.check.End, LogEndTime: p.check.EndTime,
	}, nil
}
