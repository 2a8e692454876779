package backupcmd

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/binlog"
	"github.com/weirdb/weir/internal/backup/bulk"
	dumpmy "github.com/weirdb/weir/internal/backup/mysql"
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/backup/wal"
	"github.com/weirdb/weir/internal/cli"
)

// verifyVerb is the configuration of `weir backup verify`.
type verifyVerb struct {
	keys       keyFlags
	storedOnly bool
	restore    bool
	log        bool
	binDir     string
	jobs       int
	json       cli.JSON[*verifyReport]
	quiet      bool
	progress   string
}

// verifyReport is the output of `weir backup verify --json`.
type verifyReport struct {
	ID string `json:"id"` // the backup that was verified
	OK bool   `json:"ok"` // nothing is wrong
	*archive.Verification
	Log     *wal.Verification `json:"log,omitempty"`     // the log of PostgreSQL that the backup needs
	Binlog  *dumpmy.LogCheck  `json:"binlog,omitempty"`  // the binary log of MySQL or MariaDB that follows the backup
	Restore *restoreOutcome   `json:"restore,omitempty"` // of a trial restore, with --to
	Differs string            `json:"differs,omitempty"` // how the restored rows differ from the backup
}

func newVerifyCommand() *cobra.Command {
	var v verifyVerb
	cmd := &cobra.Command{
		Use:   "verify PLACE [ID]",
		Short: "Read every byte of a backup and compare; --restore restores it, too",
		Long: `Read every byte of a backup and compare it with the manifest. Without the key of
an encrypted backup, only the stored bytes are compared.

--restore also restores it into a private server on this machine, which is removed
afterwards, and compares row counts, checksums and, if the backup has whole databases,
all definitions. It needs a server that is not older than the source (--bin-dir).
Functions and materialized views of the backup run there without superuser rights, and
objects keep their owners.

--log also reads the log that is archived beside a base backup, or beside a backup of
MySQL or MariaDB, and says where files are missing.

Exit codes: 0 good, 1 could not be verified, 2 usage, 3 damaged.`,
		Example: `  weir backup verify /backups
  weir backup verify /backups 20261121T163528Z-shop --restore
  weir backup verify shop.tar --identity key.txt`,
		Args:    cobra.RangeArgs(1, 2),
		PreRunE: func(*cobra.Command, []string) error { return checkProgress(v.progress) },
		RunE: func(cmd *cobra.Command, args []string) error {
			return v.run(cmd.Context(), args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	v.keys.add(f)
	f.BoolVar(&v.storedOnly, "stored-only", false, "compare the stored bytes only, which needs no key")
	f.BoolVar(&v.restore, "restore", false, "restore into a private server and compare")
	f.BoolVar(&v.log, "log", false, "verify the archived log from this backup on")
	f.StringVar(&v.binDir, "bin-dir", "", "with --restore: directory of the server's programs (default the newest installed)")
	f.IntVarP(&v.jobs, "jobs", "j", 2, "how many objects to read at once")
	v.json.Flag(cmd.Flags(), "print JSON")
	f.BoolVarP(&v.quiet, "quiet", "q", false, "print errors only")
	f.StringVar(&v.progress, "progress", "auto", "auto (a bar on a terminal, else lines), bar, plain or none")
	cli.Takes(f, "progress", "auto", "bar", "plain", "none")
	return cmd
}

func (v *verifyVerb) run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	r, err := openBackup(ctx, args, &v.keys)
	if err != nil {
		if damaged(err) {
			return cli.Shortfall(err)
		}
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	m := r.Manifest()
	switch {
	case v.restore && m.Scope == scopeBase:
		return cli.UsageError(fmt.Errorf("backup %s is a base backup; --restore is for backups of databases, weir restore --to-dir tests this one", m.ID))
	case v.log && m.Scope != scopeBase && familyOfBackup(m) == familyPostgres:
		return cli.UsageError(fmt.Errorf("backup %s is of databases of PostgreSQL, which no log belongs to; --log is for base backups", m.ID))
	case v.jobs < 1:
		return cli.UsageError(fmt.Errorf("--jobs %d: at least 1 is needed", v.jobs))
	}
	report := verifyReport{ID: m.ID}
	if report.Verification, err = v.bytes(ctx, r, stderr); err != nil {
		return hinted(err)
	}
	if err := wrongKey(report.Verification); err != nil {
		return err
	}
	switch {
	case v.log && familyOfBackup(m) == familyMySQL:
		report.Binlog, err = v.verifyBinlog(ctx, args[0], m)
	case v.log:
		report.Log, err = v.verifyLog(ctx, args[0], m)
	}
	if err != nil {
		return err
	}
	report.OK = report.Verification.OK() && (report.Log == nil || report.Log.OK()) && (report.Binlog == nil || report.Binlog.OK())
	var failed error
	if v.restore && report.OK {
		if failed = v.restored(ctx, r, &report, stderr); failed != nil && report.Restore == nil {
			return failed
		}
	}
	if err := v.print(&report, stdout); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	switch {
	case !report.Verification.OK():
		return cli.Shortfall(fmt.Errorf("backup %s is damaged", m.ID))
	case !report.OK:
		return cli.Shortfall(fmt.Errorf("the archived log after backup %s is damaged or incomplete", m.ID))
	}
	return nil
}

// wrongKey returns an error if the key opens no chunk at all, which is not damage. A single
// chunk that it does not open is damaged.
func wrongKey(v *archive.Verification) error {
	if len(v.Bad) == 0 || len(v.Bad) < v.Chunks {
		return nil
	}
	for _, e := range v.Bad {
		if !errors.Is(e, archive.ErrWrongKey) {
			return nil
		}
	}
	return hinted(v.Bad[0])
}

// bytes verifies the bytes of the backup.
func (v *verifyVerb) bytes(ctx context.Context, r *archive.Reader, stderr io.Writer) (*archive.Verification, error) {
	progress := &bulk.Progress{}
	progress.Phase("read")
	totals := r.Manifest().Totals
	progress.Expect(totals.StoredBytes, int64(totals.Chunks))
	mode := v.progress
	if v.quiet {
		mode = "none"
	}
	stop := showProgress("verify", mode, progress, stderr)
	defer stop()
	seen := int64(0)
	return r.Verify(ctx, archive.VerifyOptions{
		Parallel: v.jobs, StoredOnly: v.storedOnly,
		Progress: func(p archive.Progress) {
			progress.Add(p.Bytes-seen, 0)
			progress.Begin("")()
			seen = p.Bytes
		},
	})
}

// verifyLog verifies the log that belongs to a base backup.
func (v *verifyVerb) verifyLog(ctx context.Context, place string, m *archive.Manifest) (*wal.Verification, error) {
	keys, err := v.keys.options()
	if err != nil {
		return nil, cli.UsageError(err)
	}
	storage, err := archive.OpenStorage(ctx, place)
	if err != nil {
		return nil, err
	}
	return wal.Verify(ctx, storage, m, keys)
}

// verifyBinlog verifies the binary log that follows a backup.
func (v *verifyVerb) verifyBinlog(ctx context.Context, place string, m *archive.Manifest) (*dumpmy.LogCheck, error) {
	storage, err := archive.OpenStorage(ctx, place)
	if err != nil {
		return nil, err
	}
	return binlog.Verify(ctx, storage, m)
}

// restored restores into a private server.
func (v *verifyVerb) restored(ctx context.Context, r *archive.Reader, report *verifyReport, stderr io.Writer) (err error) {
	m := r.Manifest()
	dsn, stopServer, err := v.privateServer(ctx, m)
	if err != nil {
		return fmt.Errorf("start a private server: %w", err)
	}
	defer func() { err = errors.Join(err, stopServer()) }()
	cluster := m.Scope == "cluster"
	o := restore.Options{
		DSN: dsn, Create: !cluster, Sandbox: familyOfBackup(m) == familyPostgres,
		Verify: restore.VerifyRows, NoAnalyze: true, Progress: &bulk.Progress{},
	}
	// PostgreSQL's database may have a name that every server has.
	if !cluster && familyOfBackup(m) == familyPostgres {
		o.Target = "weir_verify"
	}
	mode := v.progress
	if v.quiet {
		mode = "none"
	}
	stop := showProgress("restore", mode, o.Progress, stderr)
	result, err := runRestore(ctx, o, r)
	stop()
	switch {
	case differs(err):
		report.OK, report.Differs = false, err.Error()
	case err != nil:
		report.OK, err = false, fmt.Errorf("restore into a private server: %w", err)
		if result == nil {
			return err
		}
	}
	report.Restore = &restoreOutcome{
		ID: m.ID, Tables: result.Tables, Rows: result.Rows, Bytes: result.Bytes, Warnings: result.Warnings,
		Failed: failures(result.Failed), Phases: result.Phases, ElapsedNs: result.Elapsed.Nanoseconds(),
	}
	if !v.quiet && !v.json.Given() {
		printWarnings(stderr, result.Warnings)
	}
	if report.Differs != "" {
		return nil
	}
	return err
}

func (v *verifyVerb) print(r *verifyReport, w io.Writer) error {
	if v.json.Given() {
		return v.json.Print(w, r)
	}
	for _, bad := range r.Bad {
		fmt.Fprintf(w, "bad: %v; %s\n", bad, bad.Hint())
	}
	for _, name := range r.Unknown {
		fmt.Fprintf(w, "unknown: %s is not in the manifest\n", name)
	}
	if r.Log != nil {
		for _, p := range r.Log.Problems {
			fmt.Fprintln(w, "bad:", p)
		}
	}
	if r.Binlog != nil {
		for _, p := range r.Binlog.Problems {
			fmt.Fprintln(w, "bad:", p)
		}
	}
	if r.Differs != "" {
		fmt.Fprintln(w, "differs:", r.Differs)
	}
	if r.Restore != nil {
		for _, f := range r.Restore.Failed {
			fmt.Fprintf(w, "failed: %s: %s\n", f.Object, f.Error)
		}
	}
	if v.quiet {
		return nil
	}
	how := "stored and plain bytes"
	if r.StoredOnly {
		how = "stored bytes only"
	}
	_, err := fmt.Fprintf(w, "%s: %d of %d objects good, %s read, %s\n", r.ID, r.Chunks-len(r.Bad), r.Chunks, cli.ByteText(r.StoredBytes), how)
	if r.Log != nil {
		_, e := fmt.Fprintf(w, "%s: %d files of log, %s, up to %s on timeline %d\n", r.ID, r.Log.Files, cli.ByteText(r.Log.Bytes), r.Log.End, r.Log.Timeline)
		err = errors.Join(err, e)
	}
	if b := r.Binlog; b != nil && b.Name != "" {
		_, e := fmt.Fprintf(w, "%s: %d segments of binary log, %s, %d transactions, up to %s\n", r.ID, b.Segments, cli.ByteText(b.Bytes), b.Transactions, b.End)
		err = errors.Join(err, e)
	}
	if r.Restore != nil && len(r.Restore.Failed) == 0 {
		_, e := fmt.Fprintf(w, "%s: restored and compared, %d tables, %d rows\n", r.ID, r.Restore.Tables, r.Restore.Rows)
		err = errors.Join(err, e)
	}
	return err
}
