package backupcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
	"github.com/weirdb/weir/internal/backup/schedule"
	"github.com/weirdb/weir/internal/backup/wal"
	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/wire/pgrepl"
)

// restoreDir is the part of `weir restore` that creates a data directory.
type restoreDir struct {
	to          string
	owner       string
	tablespaces map[string]string
	time        string
	lsn         string
	target      wal.Target // the rest of the target
	logFrom     string
	noLog       bool
	program     string
	label       string
}

// dirFlags are the flags that need --to-dir, and sharedFlags those that need it unless a binary
// log is replayed.
var (
	dirFlags = []string{
		"owner", "tablespace-mapping", "target-lsn", "target-name", "target-immediate", "target-exclusive",
		"target-timeline", "target-action", "no-log", "program",
	}
	sharedFlags = []string{"target-time", "log-from", "label"}
)

func (d *restoreDir) add(f *pflag.FlagSet) {
	f.StringVar(&d.to, "to-dir", "", "create this data directory from a base backup; it must be empty")
	f.StringVar(&d.owner, "owner", "", "with --to-dir: USER or USER:GROUP that owns the files")
	f.StringToStringVar(&d.tablespaces, "tablespace-mapping", nil, "with --to-dir: where a tablespace goes, as `OLD=NEW`")
	f.StringVar(&d.time, "target-time", "", "replay log up to this `TIME`, such as '2026-11-21 16:30:00+00'")
	f.StringVar(&d.lsn, "target-lsn", "", "with --to-dir: replay up to this position")
	f.StringVar(&d.target.Name, "target-name", "", "with --to-dir: replay up to this restore point (pg_create_restore_point)")
	f.BoolVar(&d.target.Immediate, "target-immediate", false, "with --to-dir: replay until the backup is consistent, no further")
	f.BoolVar(&d.target.Exclusive, "target-exclusive", false, "with --to-dir: stop just before the target")
	f.StringVar(&d.target.Timeline, "target-timeline", "latest", "with --to-dir: latest, current or a number")
	cli.Takes(f, "target-timeline", "latest", "current")
	f.StringVar(&d.target.Action, "target-action", "promote", "with --to-dir: what the server does at the target: promote, pause or shutdown")
	cli.Takes(f, "target-action", "promote", "pause", "shutdown")
	f.StringVar(&d.logFrom, "log-from", "", "`PLACE` of the archived log (default the backup's)")
	f.BoolVar(&d.noLog, "no-log", false, "with --to-dir: replay no archived log")
	f.StringVar(&d.program, "program", "", "with --to-dir: path of weir for the server to run (default this one's)")
	f.StringVar(&d.label, "label", "", "with a target: choose among backups of this label")
}

// used returns a flag that needs --to-dir, if a server of the family to is the target, and that
// was given; or "".
func (d *restoreDir) used(f *pflag.FlagSet, to family) string {
	names := dirFlags
	if to == familyPostgres {
		names = slices.Concat(dirFlags, sharedFlags)
	}
	for _, name := range names {
		if f.Changed(name) {
			return name
		}
	}
	return ""
}

// complete validates the flags.
func (d *restoreDir) complete(f *pflag.FlagSet) (err error) {
	for _, name := range []string{
		"database", "target", "rename", "create", "clean", "if-exists", "schema", "exclude-schema", "table", "exclude-table",
		"exclude-table-data", "no-owner", "no-privileges", "schema-only", "data-only", "no-globals", "resume", "force",
		"keep-going", "no-analyze", "verify", "jobs", "index-memory", "dry-run", "target-latest", "target-gtid", "target-position", "log",
	} {
		if f.Changed(name) {
			return fmt.Errorf("--%s is for a running server; --to-dir restores files", name)
		}
	}
	if d.time != "" {
		if d.target.Time, err = parseTargetTime(d.time); err != nil {
			return err
		}
	}
	if d.lsn != "" {
		if d.target.LSN, err = pgrepl.ParseLSN(d.lsn); err != nil {
			return fmt.Errorf("--target-lsn: %w", err)
		}
	}
	if d.program == "" {
		if d.program, err = os.Executable(); err != nil {
			return fmt.Errorf("--program: %w", err)
		}
	}
	if _, _, err := d.ids(); err != nil {
		return err
	}
	return d.target.Validate()
}

// parseTargetTime parses a time as PostgreSQL writes it, or in RFC 3339.
func parseTargetTime(text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999Z07:00", "2006-01-02 15:04:05.999999Z07"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("--target-time %q: want a time with its zone, such as '2026-11-21 16:30:00+00'", text)
}

// ids returns the numeric IDs of --owner; -1 does not change the owner.
func (d *restoreDir) ids() (uid, gid int, err error) {
	if d.owner == "" {
		return -1, -1, nil
	}
	name, group, _ := strings.Cut(d.owner, ":")
	u, err := user.Lookup(name)
	if err != nil {
		return 0, 0, fmt.Errorf("--owner: %w", err)
	}
	gidText := u.Gid
	if group != "" {
		g, err := user.LookupGroup(group)
		if err != nil {
			return 0, 0, fmt.Errorf("--owner: %w", err)
		}
		gidText = g.Gid
	}
	uid, err = strconv.Atoi(u.Uid)
	if err != nil {
		return 0, 0, fmt.Errorf("--owner: %w", err)
	}
	gid, err = strconv.Atoi(gidText)
	if err != nil {
		return 0, 0, fmt.Errorf("--owner: %w", err)
	}
	return uid, gid, nil
}

// run creates the data directory.
func (d *restoreDir) run(ctx context.Context, args []string, v *restoreVerb, stdout, stderr io.Writer) (err error) {
	checked := d.target
	if len(args) == 1 && args[0] != "-" && !strings.HasSuffix(args[0], ".tar") {
		repo, err := archive.OpenRepository(ctx, args[0])
		if err != nil {
			return err
		}
		keys, err := v.keys.options()
		if err != nil {
			return cli.UsageError(err)
		}
		log := repo.Storage()
		if d.logFrom != "" {
			if log, err = archive.OpenStorage(ctx, d.logFrom); err != nil {
				return err
			}
		}
		id, err := wal.ChooseBase(ctx, repo, log, d.label, d.target, keys)
		if err != nil {
			return err
		}
		args = append(args, id)
		checked.Name = "" // looked up already
	}
	r, err := openBackup(ctx, args, &v.keys)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	opts := wal.DirOptions{Dir: d.to, Tablespaces: d.tablespaces, Target: d.target, Progress: &bulk.Progress{}}
	if opts.UID, opts.GID, err = d.ids(); err != nil {
		return cli.UsageError(err)
	}
	if opts.RestoreCommand, err = d.command(ctx, args[0], r.Manifest(), &v.keys); err != nil {
		return err
	}
	if opts.RestoreCommand != "" {
		if opts.Target, err = d.check(ctx, args[0], r.Manifest(), checked, &v.keys); err != nil {
			return hinted(err)
		}
	}
	mode := v.progress
	if v.quiet {
		mode = "none"
	}
	unserve, err := v.admin.serve(ctx, "restore", r.Manifest().ID+" of "+placeText(args[0]), opts.Progress, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unserve()) }()
	stop := showProgress("restore", mode, opts.Progress, stderr)
	err = wal.RestoreDir(ctx, r, opts)
	stop()
	if err != nil {
		return hinted(err)
	}
	return d.report(r.Manifest(), opts, v, stdout)
}

// check checks that the log leads to a target, and returns the target to configure on the
// server.
func (d *restoreDir) check(ctx context.Context, place string, m *archive.Manifest, t wal.Target, keys *keyFlags) (wal.Target, error) {
	if d.logFrom != "" {
		place = d.logFrom
	}
	storage, err := archive.OpenStorage(ctx, place)
	if err != nil {
		return d.target, err
	}
	options, err := keys.options()
	if err != nil {
		return d.target, cli.UsageError(err)
	}
	if err := t.Check(ctx, storage, m, options); err != nil {
		return d.target, err
	}
	return d.target.ForServer(ctx, storage, m, options)
}

// command returns the command that the server runs for each file of the log, or "" if there is
// no log.
func (d *restoreDir) command(ctx context.Context, place string, m *archive.Manifest, keys *keyFlags) (string, error) {
	if d.noLog {
		return "", nil
	}
	if d.logFrom != "" {
		place = d.logFrom
	}
	if place == "-" || strings.HasSuffix(place, ".tar") {
		return "", nil
	}
	storage, err := archive.OpenStorage(ctx, place)
	if err != nil {
		return "", err
	}
	has, err := wal.HasLog(ctx, storage, m.Server.SystemID)
	if err != nil {
		return "", err
	}
	if !has {
		if d.logFrom != "" {
			return "", fmt.Errorf("--log-from: %s holds no log of cluster %s", placeText(place), m.Server.SystemID)
		}
		return "", nil
	}
	// The server runs it in its data directory.
	args := []string{d.program, "wal-fetch", "--system", m.Server.SystemID}
	for i, a := range keys.arguments() {
		if i%2 == 1 {
			if a, err = filepath.Abs(a); err != nil {
				return "", fmt.Errorf("find key: %w", err)
			}
		}
		args = append(args, a)
	}
	if !strings.HasPrefix(place, "s3://") {
		if place, err = filepath.Abs(strings.TrimPrefix(place, "file://")); err != nil {
			return "", fmt.Errorf("find log: %w", err)
		}
	}
	args = append(args, place)
	return strings.ReplaceAll(schedule.ShellLine(args), "%", "%%") + ` "%f" "%p"`, nil
}

// restoredDir is a base backup restored into its directory.
type restoredDir struct {
	Dir            string `json:"dir"`                       // the data directory
	RestoreCommand string `json:"restore_command,omitempty"` // with which the server fetches log
}

func (d *restoreDir) report(m *archive.Manifest, opts wal.DirOptions, v *restoreVerb, stdout io.Writer) error {
	if v.json.Given() {
		return v.json.Print(stdout, restored{ID: m.ID, restoredDir: &restoredDir{d.to, opts.RestoreCommand}})
	}
	if v.quiet {
		return nil
	}
	next := "replays the archived log when it is started; weir must be able to read the archive as the server's user"
	if opts.RestoreCommand == "" {
		next = fmt.Sprintf("is as the cluster was at %s when it is started", m.Position.LSN)
	}
	_, err := fmt.Fprintf(stdout, "restored %s into %s: PostgreSQL %s; it %s\n", m.ID, d.to, m.Server.Version, next)
	return err
}
