package backupcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/binlog"
	"github.com/weirdb/weir/internal/backup/bulk"
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/cli"
)

// restoreVerb is the configuration of `weir restore`.
type restoreVerb struct {
	watched
	indexWorkers int
	options      restore.Options
	keys         keyFlags
	dir          restoreDir
	log          restoreLog
	rename       string
	verify       string
	profile      string
	memory       string
	json         cli.JSON[restored]
	quiet        bool
	progress     string
	admin        adminFlag

	keepGoing bool
	failedSQL string
}

func newRestoreCommand() *cobra.Command {
	var v restoreVerb
	cmd := &cobra.Command{
		Use:   "restore PLACE [ID]",
		Short: "Restore a backup into a server, or a base backup into a data directory",
		Long: `Restore backup ID from PLACE: a directory, an S3 location, the directory of one
backup, a stream in a file, or - for standard input. Without an ID, weir restores the
newest backup, if all have one label and server; latest:LABEL is the newest of a label.

With --to, a backup of databases goes into a running server: definitions, then rows in
parallel, then the indexes and constraints of each table as soon as its rows are
loaded. --create creates the database that --to names or, if it names none or
"postgres", the one of the backup. A database that is not empty is refused, unless
--clean drops what will be restored. The target records which steps are done, so that
--resume can continue an interrupted restore.

With --to-dir, a base backup becomes a data directory, with the settings that make the
server replay the archived log up to a time, a position or a name.

With --to and one of --target-time, --target-gtid, --target-position and
--target-latest, weir restores a backup of MySQL or MariaDB and replays the binary log
that weir backup binlog has archived. It reads and checks the log before it restores
anything. Without an ID, it takes the newest backup from which the target can be
reached.

The rows that the server accepted are counted and compared with the backup; --verify
also reads them again and compares checksums.

If an object fails, the objects that need it are skipped, and all others are restored.
The exit code is then 1; a list at the end names what failed and what was skipped, and
a file has the SQL that is left to run.

Exit codes: 0 restored, 1 failed, 2 usage, 3 restored, but differs from the backup.`,
		Example: `  weir restore /backups --to postgres://postgres@db/ --create
  weir restore /backups --to postgres://app@db/shop -t orders --data-only
  weir restore /backups --to postgres://postgres@db/ --create --rename shop=shop_test
  weir restore shop.tar --to postgres://postgres@db/shop --clean --if-exists --verify
  weir restore /backups --to-dir /var/lib/postgresql/15/main --owner postgres \
      --target-time '2026-11-21 16:30:00+00'
  weir restore /backups --to mysql://root@db/ --create --target-time '2026-11-21 16:30:00+00'`,
		Args: cobra.RangeArgs(1, 2),
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			return v.complete(cmd.Flags())
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if v.dir.to != "" {
				return v.dir.run(cmd.Context(), args, &v, cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			return v.run(cmd.Context(), args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	v.flags(cmd.Flags())
	return cmd
}

func (v *restoreVerb) flags(f *pflag.FlagSet) {
	o := &v.options
	f.StringVar(&o.DSN, "to", "", "`DSN` of the server and database to restore into")
	f.StringVar(&o.Database, "database", "", "which database of the backup (default the only one, or all of a cluster)")
	f.StringVar(&o.Target, "target", "", "name of the database to restore into")
	f.StringVar(&v.rename, "rename", "", "restore database OLD of the backup as NEW, as `OLD=NEW`")
	f.BoolVar(&o.Create, "create", false, "create the database first")
	f.BoolVar(&o.Clean, "clean", false, "first drop what will be restored")
	f.BoolVar(&o.IfExists, "if-exists", false, "with --clean: do not fail if there is nothing to drop")
	f.StringArrayVarP(&o.Filter.Schemas, "schema", "n", nil, "only schemas that match (repeatable)")
	f.StringArrayVarP(&o.Filter.ExcludeSchemas, "exclude-schema", "N", nil, "no schemas that match (repeatable)")
	f.StringArrayVarP(&o.Filter.Tables, "table", "t", nil, "only tables that match (repeatable)")
	f.StringArrayVarP(&o.Filter.ExcludeTables, "exclude-table", "T", nil, "no tables that match (repeatable)")
	f.StringArrayVar(&o.Filter.ExcludeTableData, "exclude-table-data", nil, "no rows of tables that match (repeatable)")
	f.BoolVar(&o.NoOwner, "no-owner", false, "make the restoring role the owner of all objects")
	f.BoolVar(&o.NoPrivileges, "no-privileges", false, "no grants")
	f.BoolVar(&o.SchemaOnly, "schema-only", false, "definitions, no rows")
	f.BoolVar(&o.DataOnly, "data-only", false, "rows, no definitions")
	f.BoolVar(&o.NoGlobals, "no-globals", false, "no roles and tablespaces of a cluster")
	f.BoolVar(&o.DryRun, "dry-run", false, "print what would be done, and change nothing")
	f.BoolVar(&o.Resume, "resume", false, "continue a restore that was interrupted")
	f.BoolVar(&o.Force, "force", false, "restore into a server that is older than the source")
	f.BoolVar(&v.keepGoing, "keep-going", true, "after an error in an object continue with all that do not need it, and report all errors at the end; =false stops at the first one")
	f.StringVar(&v.failedSQL, "failed-sql", "", "`FILE` for the SQL that is left to run, if objects fail (default weir-restore-ID.sql here)")
	f.BoolVar(&o.NoCheck, "no-check", false, "skip the check of everything except rows before the restore begins: for a backup whose damaged parts are not needed")
	f.BoolVar(&o.NoAnalyze, "no-analyze", false, "do not gather planner statistics; the server does so later")
	f.StringVar(&v.verify, "verify", string(restore.VerifyCounts), "none, counts, or rows (--verify alone): read tables again and compare checksums")
	cli.Takes(f, "verify", "none", "counts", "rows")
	f.Lookup("verify").NoOptDefVal = string(restore.VerifyRows)
	f.StringVar(&v.profile, "profile", "auto", "auto, conservative, balanced, performance, max-performance or turbo")
	cli.Takes(f, "profile", "auto", "conservative", "balanced", "performance", "max-performance", "turbo")
	f.IntVarP(&o.Jobs, "jobs", "j", 0, "how many jobs run at once (default by the profile)")
	addAdapt(f, &o.Adapt)
	f.StringVar(&v.memory, "index-memory", "", "memory of each index build (default by the profile)")
	f.IntVar(&v.indexWorkers, "index-workers", 0, "PostgreSQL: parallel workers of each index build (default the server's setting for a build that runs alone, else none)")
	f.DurationVar(&o.IndexTimeout, "index-timeout", 0, "PostgreSQL: how long one index or constraint may take before it fails (default no limit)")
	f.StringArrayVar(&o.Tuning, "set", nil, "PostgreSQL: a setting of the restoring sessions, such as random_page_cost=1.1 or effective_io_concurrency=200 (repeatable)")
	v.keys.add(f)
	v.dir.add(f)
	v.log.add(f)
	v.json.Flag(f, "print the outcome as JSON")
	f.BoolVarP(&v.quiet, "quiet", "q", false, "print errors only")
	f.StringVar(&v.progress, "progress", "auto", "auto (a bar on a terminal, else lines), bar, plain or none")
	cli.Takes(f, "progress", "auto", "bar", "plain", "none")
	v.admin.add(f)
}

// complete validates the flags and fills in defaults.
func (v *restoreVerb) complete(f *pflag.FlagSet) (err error) {
	o := &v.options
	switch {
	case o.DSN == "" && v.dir.to == "":
		return errors.New("no target: give --to a server, or --to-dir a data directory")
	case o.DSN != "" && v.dir.to != "":
		return errors.New("--to is a server and --to-dir a data directory: one of them")
	case v.dir.to != "":
		return errors.Join(v.dir.complete(f), checkProgress(v.progress))
	}
	if name := v.dir.used(f, familyOf(o.DSN)); name != "" {
		return fmt.Errorf("--%s needs --to-dir: it is for a data directory", name)
	}
	if err := v.log.complete(f, v); err != nil {
		return err
	}
	if v.rename != "" {
		old, name, ok := strings.Cut(v.rename, "=")
		if !ok || old == "" || name == "" || o.Database != "" || o.Target != "" {
			return fmt.Errorf("--rename %q: want OLD=NEW, and neither --database nor --target beside it", v.rename)
		}
		o.Database, o.Target = old, name
	}
	if o.Profile, err = bulk.ProfileNamed(v.profile, bulk.ThisMachine()); err != nil {
		return fmt.Errorf("--profile: %w", err)
	}
	if v.memory != "" {
		n, err := cli.ParseSize(v.memory)
		if err != nil {
			return fmt.Errorf("--index-memory %q: %w", v.memory, err)
		}
		o.MaintenanceBytes = int64(n)
	}
	if f.Changed("index-workers") {
		o.IndexWorkers = &v.indexWorkers
	}
	if familyOf(o.DSN) == familyMySQL && (o.IndexWorkers != nil || o.IndexTimeout != 0 || len(o.Tuning) > 0) {
		return errors.New("--index-workers, --index-timeout and --set are for PostgreSQL only")
	}
	o.Verify = restore.Verify(v.verify)
	o.Stop = !v.keepGoing
	o.Progress = &bulk.Progress{}
	if err := checkProgress(v.progress); err != nil {
		return err
	}
	return o.WithDefaults().Validate()
}

// run restores into a server.
func (v *restoreVerb) run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	if v.log.on && len(args) == 1 && args[0] != "-" && !strings.HasSuffix(args[0], ".tar") {
		id, err := v.log.choose(ctx, args[0])
		if err != nil {
			return err
		}
		args = append(args, id)
	}
	r, err := openBackup(ctx, args, &v.keys)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	m := r.Manifest()
	if m.Scope == scopeBase {
		return cli.UsageError(fmt.Errorf("backup %s is a base backup, of files: --to-dir makes a data directory of it", m.ID))
	}
	if name, err := databaseOf(v.options.DSN); v.log.on && err == nil && name != "" && v.options.Create && !slices.ContainsFunc(m.Databases, func(d archive.Database) bool { return d.Name == name }) {
		return cli.UsageError(fmt.Errorf("--to names database %s, and a log is replayed under the databases' own names: leave it out", name))
	}
	var log *binlog.Replay
	if v.log.on && familyOfBackup(m) == familyMySQL {
		var release func() error
		if log, release, err = v.log.prepare(ctx, args[0], m, v, stderr); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, release()) }()
	}
	mode := v.progress
	if v.quiet || v.options.DryRun {
		mode = "none"
	}
	unserve, err := v.admin.serve(ctx, "restore", m.ID+" of "+placeText(args[0]), v.options.Progress, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unserve()) }()
	stop := showProgress("restore", mode, v.options.Progress, stderr)
	end := v.watched.begin(v.json.Given() && !v.options.DryRun)
	result, err := runRestore(ctx, v.options, r)
	end(0)
	stop()
	if result == nil {
		return hinted(err)
	}
	if m.Partial {
		result.Warnings = slices.Insert(result.Warnings, 0, "backup "+m.ID+" is partial, without some tables or rows for example: weir backup list shows whether there is a whole one")
	}
	if !v.quiet {
		printWarnings(stderr, result.Warnings)
	}
	if e := v.leave(result, args[0], m.ID, err, stderr); e != nil {
		err = errors.Join(err, e)
	}
	if err != nil && result.Ended {
		err = errors.Join(err, v.report(m, result, nil, stdout))
	}
	if err != nil {
		if continues(ctx, result, err) && log == nil && !v.quiet && !v.options.DryRun {
			fmt.Fprintln(stderr, "the restore is unfinished; --resume continues it")
		}
		if differs(err) {
			return cli.Shortfall(err)
		}
		return hinted(err)
	}
	var replayed *binlog.Outcome
	if log != nil {
		if replayed, err = v.log.replay(ctx, log, v.quiet, stderr); err != nil {
			return err
		}
	}
	return v.report(m, result, replayed, stdout)
}

// continues reports whether a restore has left something that --resume continues, and its error
// neither says so nor refuses a target.
func continues(ctx context.Context, r *restore.Result, err error) bool {
	var refusal *restore.Refusal
	said := errors.Is(err, restore.ErrBeside) || errors.Is(err, restore.ErrTriggered)
	return ctx.Err() != nil || len(r.Plan) > 0 && !r.Ended && !said && !errors.As(err, &refusal)
}

// leave writes what is left to do into a file, and lists the failures except the one that the
// restore's error names.
func (v *restoreVerb) leave(r *restore.Result, place, id string, failed error, stderr io.Writer) error {
	if len(r.Failed)+len(r.Broken) == 0 || v.options.DryRun {
		return nil
	}
	f, err := v.restFile(id)
	if err != nil {
		return fmt.Errorf("write what is left to do: %w", err)
	}
	if err := errors.Join(r.WriteRest(f, place, id), f.Close()); err != nil {
		return err
	}
	for _, o := range r.Failed {
		if text := fmt.Sprint(o); failed == nil || !strings.Contains(failed.Error(), text) {
			fmt.Fprintln(stderr, "failed:", text)
		}
	}
	switch {
	case len(r.Failed) == 0:
		fmt.Fprintf(stderr, "the definitions of %d objects that were unusable at the source are in %s\n", len(r.Broken), f.Name())
	case r.Ended:
		fmt.Fprintf(stderr, "%s failed, all others are restored; what is left to do is in %s\n", restore.Objects(len(r.Failed)), f.Name())
	default:
		fmt.Fprintf(stderr, "%s failed before the restore ended, see %s\n", restore.Objects(len(r.Failed)), f.Name())
	}
	return nil
}

// restFile opens the file of --failed-sql, or one in the current directory, or else a temporary
// one. It is readable by its owner only.
func (v *restoreVerb) restFile(id string) (*os.File, error) {
	if v.failedSQL != "" {
		return os.OpenFile(v.failedSQL, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	}
	f, err := os.OpenFile("weir-restore-"+id+".sql", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return os.CreateTemp("", "weir-restore-"+id+"-*.sql")
	}
	return f, nil
}

// report prints the plan of a dry run, or the outcome.
func (v *restoreVerb) report(m *archive.Manifest, r *restore.Result, log *binlog.Outcome, stdout io.Writer) error {
	switch {
	case v.json.Given():
		out := restoreOutcome{
			ID: m.ID, DryRun: v.options.DryRun, Tables: r.Tables, Rows: r.Rows, Bytes: r.Bytes,
			Resumed: r.Resumed, Warnings: r.Warnings, Failed: failures(r.Failed), Phases: r.Phases, Workers: r.Workers, Footprint: v.footprint, ElapsedNs: r.Elapsed.Nanoseconds(),
			Replay: log,
		}
		if v.options.DryRun {
			out.Plan = r.Plan
		}
		return v.json.Print(stdout, restored{ID: m.ID, restoreOutcome: &out})
	case v.options.DryRun:
		return printPlan(stdout, r.Plan)
	case v.quiet:
		return nil
	}
	resumed := ""
	if r.Resumed > 0 {
		resumed = fmt.Sprintf(", %d steps done before", r.Resumed)
	}
	_, err := fmt.Fprintf(stdout, "restored %s: %d tables, %d rows, %s, %s (%s/s), verified by %s%s\n", m.ID, r.Tables, r.Rows,
		cli.ByteText(r.Bytes), durationText(r.Elapsed), cli.ByteText(float64(r.Bytes)/r.Elapsed.Seconds()), v.options.Verify, resumed)
	if log != nil {
		_, e := fmt.Fprintf(stdout, "replayed binary log %s from %s to %s: %d transactions\n", log.Log, log.From, log.Position, log.Transactions)
		err = errors.Join(err, e)
	}
	return err
}

// restored is the output of `weir restore --json`: an outcome or, for a base backup, the
// directory.
type restored struct {
	ID string `json:"id"` // of the backup
	*restoreOutcome
	*restoredDir
}

// restoreOutcome is the outcome of a restore into a server.
type restoreOutcome struct {
	ID       string          `json:"id"`                 // the backup that was restored
	DryRun   bool            `json:"dry_run,omitempty"`  // nothing was restored: see plan
	Tables   int             `json:"tables"`             // number of tables
	Rows     int64           `json:"rows"`               // number of rows
	Bytes    int64           `json:"bytes"`              // bytes of rows, before compression
	Resumed  int             `json:"resumed,omitempty"`  // steps that an earlier run had finished
	Warnings []string        `json:"warnings,omitempty"` // what the restore could not do exactly
	Failed   []failure       `json:"failed,omitempty"`   // objects that failed
	Phases   []restore.Phase `json:"phases,omitempty"`   // in order

	Workers   []bulk.WorkerPoolStats `json:"workers,omitempty"`   // each pool of workers
	Footprint *bulk.Footprint        `json:"footprint,omitempty"` // the memory of this process at its peak

	Plan      []restore.Step  `json:"plan,omitempty"`   // of --dry-run: the steps
	Replay    *binlog.Outcome `json:"replay,omitempty"` // the replay of the binary log
	ElapsedNs int64           `json:"elapsed_ns"`       // nanoseconds from start to end
}

// failure is an object that could not be restored.
type failure struct {
	Database string `json:"database,omitempty"` // of the object
	Object   string `json:"object"`             // its kind and name
	Error    string `json:"error"`              // of the server or of weir
}

func failures(failed []*restore.ObjectError) []failure {
	var out []failure
	for _, f := range failed {
		out = append(out, failure{f.Database, f.Object, f.Err.Error()})
	}
	return out
}

func printPlan(w io.Writer, plan []restore.Step) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range plan {
		line := fmt.Sprintf("%s\t%s\t%s", s.Database, s.Phase, s.Object)
		if s.Rows > 0 || s.Bytes > 0 {
			line += fmt.Sprintf(" (%d rows, %s)", s.Rows, cli.ByteText(s.Bytes))
		}
		if s.Done {
			line += " - done before"
		}
		fmt.Fprintln(out, line) // Flush returns the error
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print plan: %w", err)
	}
	return nil
}
