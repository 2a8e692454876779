package backupcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
	"github.com/weirdb/weir/internal/backup/notice"
	"github.com/weirdb/weir/internal/cli"
)

// backupVerb is the configuration of `weir backup`.
type backupVerb struct {
	options    backup.Options
	archive    archiveFlags
	hooks      notice.Hooks
	to         string
	id         string
	label      string
	resume     string
	profile    string
	jobs       int
	dumpJobs   int
	chunk      string
	lockTables bool
	hide       bool
	json       cli.JSON[backupOutcome]
	quiet      bool
	progress   string
	admin      adminFlag
	watched
}

func newBackupCommand() *cobra.Command {
	var v backupVerb
	cmd := &cobra.Command{
		Use:   "backup [DSN]",
		Short: "Back up a database, a cluster, or its log, into an archive",
		Long: `Back up the database that the DSN names into a directory, an S3 bucket or a stream,
as ordinary compressed SQL and rows that standard tools read (docs/archive-format.md).
All tables are read in one snapshot, in parallel, large ones in ranges.

The DSN chooses the engine. Without one, weir connects to PostgreSQL as PGHOST, PGUSER
and so on say. Put passwords in PGPASSWORD or a password file: any user of the machine
can read a command line.

--to takes a directory or s3://BUCKET/PREFIX?endpoint=URL&region=NAME, in which
each backup gets a directory of its own, or one stream: FILE.tar, or - for
standard output. The first interrupt stops the backup so that --resume can continue
it; a second one kills weir at once.

Exit codes: 0 the backup is complete, 1 it is not, 2 usage.`,
		Example: `  weir backup postgres://app@db/shop --to /backups
  weir backup postgres://postgres@db/ --cluster --to 's3://backups/db?region=eu-central-1'
  weir backup postgres://app@db/shop --to - | ssh host 'cat > shop.tar'
  weir backup postgres://app@db/shop --to /backups --resume
  weir backup base postgres://postgres@db/ --to /backups
  weir backup wal postgres://postgres@db/ --to /backups
  weir backup binlog mysql://replicator@db/ --to /backups`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				if err := misspeltVerb(cmd, args[0]); err != nil {
					return err
				}
			}
			return cobra.MaximumNArgs(1)(cmd, args)
		},
		PreRunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				v.options.DSN = args[0]
			}
			return v.complete()
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return v.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	v.flags(cmd.Flags())
	cli.Words(cmd, "profile", "auto", "conservative", "balanced", "performance", "max-performance", "turbo")
	cli.Words(cmd, "progress", "auto", "bar", "plain", "none")
	cmd.AddCommand(
		newBackupProfilesCommand(), newBackupBaseCommand(), newBackupWALCommand(), newBackupBinlogCommand(),
		newListCommand(), newVerifyCommand(), newPruneCommand(), newCatCommand(), newScheduleCommand(),
	)
	return cmd
}

// misspeltVerb returns an error if the word in place of a DSN is not a DSN and resembles the
// name of a verb below cmd.
func misspeltVerb(cmd *cobra.Command, word string) error {
	if strings.ContainsAny(word, ":=") {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	like := cmd.SuggestionsFor(word)
	if len(like) == 0 {
		return nil
	}
	return fmt.Errorf("unknown command %q for %q; did you mean %s?", word, cmd.CommandPath(), strings.Join(like, " or "))
}

func (v *backupVerb) flags(f *pflag.FlagSet) {
	o := &v.options
	f.StringVar(&v.to, "to", "", "where to: DIR, s3://BUCKET/PREFIX, FILE.tar or - (required)")
	f.StringVar(&v.id, "id", "", "name of the backup (default the time and the label)")
	f.StringVar(&v.label, "label", "", "name under which prune's rules count this backup (default the database's name, or cluster)")
	f.StringVar(&v.resume, "resume", "", "continue the unfinished backup `ID`, or without one the newest of the label")
	f.Lookup("resume").NoOptDefVal = archive.Latest
	f.BoolVar(&o.Cluster, "cluster", false, "all databases, roles and tablespaces")
	f.StringArrayVar(&o.Databases, "database", nil, "with --cluster: only this database (repeatable)")
	f.StringArrayVarP(&o.Filter.Schemas, "schema", "n", nil, "only schemas that match, as in pg_dump (repeatable)")
	f.StringArrayVarP(&o.Filter.ExcludeSchemas, "exclude-schema", "N", nil, "no schemas that match (repeatable)")
	f.StringArrayVarP(&o.Filter.Tables, "table", "t", nil, "only tables that match (repeatable)")
	f.StringArrayVarP(&o.Filter.ExcludeTables, "exclude-table", "T", nil, "no tables that match (repeatable)")
	f.StringArrayVar(&o.Filter.ExcludeTableData, "exclude-table-data", nil, "no rows of tables that match (repeatable)")
	f.BoolVar(&o.SchemaOnly, "schema-only", false, "definitions, no rows")
	f.BoolVar(&o.NoUnlogged, "no-unlogged-table-data", false, "no rows of unlogged tables")
	f.BoolVar(&o.NoLargeObjects, "no-large-objects", false, "no large objects")
	f.BoolVar(&o.NoGlobals, "no-globals", false, "with --cluster: no roles and tablespaces")
	f.BoolVar(&o.NoRolePasswords, "no-role-passwords", false, "with --cluster: leave out the passwords of roles, which only a superuser can read")
	f.BoolVar(&o.Binary, "binary", false, "rows in the server's binary format, for the same major version only")
	f.BoolVar(&v.lockTables, "lock-tables", true, "MySQL, MariaDB: lock tables without transactions (MyISAM and the like) against writes until they are copied")
	f.BoolVar(&o.Checksums, "checksums", true, "store a checksum of the rows of each table, which restores compare")
	f.BoolVar(&o.Deferrable, "serializable-deferrable", false, "take a snapshot without serialization anomalies, which may have to wait")
	f.StringVar(&v.profile, "profile", "auto", "auto, conservative, balanced, performance, max-performance or turbo")
	f.IntVarP(&v.jobs, "jobs", "j", 0, "how many jobs run at once (default by the profile)")
	addAdapt(f, &o.Adapt)
	f.IntVar(&v.dumpJobs, "dump-jobs", 0, "how many connections read tables (default --jobs)")
	f.IntVar(&o.ClusterParallelism, "cluster-parallelism", 0, "how many databases to read at once (default by the profile)")
	f.StringVar(&v.chunk, "chunk-size", "", "split tables that are larger than this on disk (default 8MB to 128MB, by how much each of --jobs has to read)")
	f.DurationVar(&o.LockWait, "lock-wait-timeout", backup.DefaultLockWait, "how long to wait for a lock on a table, or none")
	cli.OrNone(f, "lock-wait-timeout", "0s")
	f.StringVar(&o.TempDir, "temp-dir", "", "directory for definitions while they are being read")
	v.archive.add(f)
	f.BoolVar(&v.hide, "encrypt-manifest", false, "encrypt the manifest too, which hides names; such a backup cannot be resumed")
	addHooks(f, &v.hooks)
	v.admin.add(f)
	v.json.Flag(f, "print the outcome as JSON")
	f.BoolVarP(&v.quiet, "quiet", "q", false, "print errors only")
	f.StringVar(&v.progress, "progress", "auto", "auto (a bar on a terminal, else lines), bar, plain or none")
}

// complete validates the flags and fills in defaults.
func (v *backupVerb) complete() error {
	o := &v.options
	if v.to == "" {
		return errors.New("no place for the backup: give --to a directory, s3://BUCKET/PREFIX, FILE.tar or -")
	}
	if o.DSN == "" {
		o.DSN = "postgres://"
	}
	database, err := databaseOf(o.DSN)
	switch {
	case err != nil:
		return err
	case o.Cluster:
		database = "cluster"
	case database == "":
		return errors.New("the DSN names no database: add /NAME, or --cluster for all")
	}
	v.label = cmp.Or(v.label, archive.Label(database))
	if o.Profile, err = bulk.ProfileNamed(v.profile, bulk.ThisMachine()); err != nil {
		return fmt.Errorf("--profile: %w", err)
	}
	if v.chunk != "" {
		size, err := cli.ParseSize(v.chunk)
		if err != nil {
			return fmt.Errorf("--chunk-size %q: %w", v.chunk, err)
		}
		if o.ChunkBytes = int64(size); size == 0 {
			o.ChunkBytes = -1 // rejected with the other options
		}
	}
	if v.jobs < 0 || v.dumpJobs < 0 {
		return errors.New("--jobs and --dump-jobs: at least 1 is needed")
	}
	o.Jobs = cmp.Or(v.dumpJobs, v.jobs)
	o.LockWait = cmp.Or(o.LockWait, -1) // "none" means no limit, not the default
	o.Progress = &bulk.Progress{}
	o.NoLockTables = !v.lockTables
	switch {
	case v.resume != "" && v.stream():
		return errors.New("--resume: a stream cannot be continued, only a directory or a bucket")
	case v.resume != "" && v.id != "":
		return errors.New("--id is for a new backup; --resume=ID continues one")
	case v.json.Given() && v.to == "-":
		return errors.New("--json and --to -: both want standard output")
	}
	if err := v.hooks.Validate(); err != nil {
		return err
	}
	if err := checkProgress(v.progress); err != nil {
		return err
	}
	a, err := v.archive.options()
	if err != nil {
		return err
	}
	if v.hide && !a.Encryption.Enabled() {
		return errors.New("--encrypt-manifest needs a key: give --encrypt-recipient, --encrypt-recipients-file or --encrypt-passphrase-file")
	}
	return o.WithDefaults().Validate()
}

// stream reports whether the backup is written as a stream.
func (v *backupVerb) stream() bool {
	return v.to == "-" || strings.HasSuffix(v.to, ".tar") && !strings.HasPrefix(v.to, "s3://")
}

// run backs up and reports the outcome to hooks, metrics and outputs.
func (v *backupVerb) run(ctx context.Context, stdout, stderr io.Writer) error {
	out := &notice.Outcome{Label: v.label, Location: placeText(v.to), Started: time.Now()}
	if err := v.hooks.Start(ctx, out, stderr); err != nil {
		out.Error, out.Elapsed = err.Error(), time.Since(out.Started)
		return errors.Join(err, v.hooks.Finish(ctx, out, stderr))
	}
	v.options = v.options.WithDefaults()
	if !v.quiet {
		fmt.Fprintf(stderr, "backup of %s to %s, profile %s: %d jobs\n", v.label, out.Location, v.options.Profile.Name, v.options.Jobs)
	}
	result, err := v.backup(ctx, out, stdout, stderr)
	out.Elapsed = time.Since(out.Started)
	if result != nil {
		m := result.Manifest
		out.OK, out.Tables, out.Rows, out.Warnings = true, m.Totals.Tables, m.Totals.Rows, m.Warnings
		out.PlainBytes, out.StoredBytes = m.Totals.PlainBytes, m.Totals.StoredBytes
		for _, w := range result.Workers {
			out.WorkersPeak = max(out.WorkersPeak, w.Peak)
			out.JobsCompleted += w.Completed
		}
	} else {
		out.Error = err.Error()
	}
	err = errors.Join(err, v.hooks.Finish(ctx, out, stderr))
	if result == nil {
		return err
	}
	return errors.Join(v.report(out, result, stdout, stderr), err)
}

// backup takes the backup.
func (v *backupVerb) backup(ctx context.Context, out *notice.Outcome, stdout, stderr io.Writer) (result *backup.Result, err error) {
	unserve, err := v.admin.serve(ctx, "backup", v.label+" → "+out.Location, v.options.Progress, stderr)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unserve()) }()
	w, end, err := v.open(ctx, stdout)
	if err != nil {
		return nil, hinted(err)
	}
	defer func() {
		if failed := end(err == nil); failed != nil { // without its final name, a stream is not a backup
			result, err = nil, errors.Join(err, failed)
		}
	}()
	out.ID = w.ID()
	mode := v.progress
	if v.quiet {
		mode = "none"
	}
	stop := showProgress("backup", mode, v.options.Progress, stderr)
	defer stop()
	ended := v.watched.begin(v.json.Given())
	result, err = runBackup(ctx, v.options, w)
	b := w.Stats().Buffers
	ended(int64(b.Allocated) * int64(b.Size))
	if err == nil {
		return result, nil
	}
	stop()
	if !v.stream() && !v.hide && !v.quiet && w.Stats().Complete() > 0 {
		fmt.Fprintf(stderr, "backup %s is unfinished; its complete parts are kept, and --resume=%s continues it\n", w.ID(), w.ID())
	}
	return nil, err
}

// open begins the backup, or continues one. end closes what was opened, and removes a stream's
// file unless whole is true.
func (v *backupVerb) open(ctx context.Context, stdout io.Writer) (_ *archive.Writer, end func(whole bool) error, err error) {
	opts, err := v.archive.options()
	if err != nil {
		return nil, nil, err
	}
	opts.ID, opts.Label = v.id, v.label
	opts.Parallel = max(v.jobs, v.options.Adapt.Most(v.options.Jobs)) + 2 // definitions are written in addition to rows
	opts.Inline = v.options.Adapt.Least(v.options.Jobs) >= runtime.GOMAXPROCS(0)
	opts.Encryption.HideNames = v.hide
	none := func(bool) error { return nil }
	switch {
	case v.to == "-":
		w, err := archive.CreateStream(ctx, stdout, opts)
		return w, none, err
	case v.stream():
		return archive.CreateFile(ctx, v.to, opts)
	}
	repo, err := archive.OpenRepository(ctx, v.to)
	if err != nil {
		return nil, nil, err
	}
	if opts.Resume = v.resume != ""; opts.Resume {
		if opts.ID = v.resume; opts.ID == archive.Latest {
			if opts.ID, err = unfinished(ctx, repo, v.label); err != nil {
				return nil, nil, err
			}
		}
	}
	w, err := archive.Create(ctx, repo, opts)
	return w, none, err
}

// unfinished returns the id of the newest unfinished backup with a label.
func unfinished(ctx context.Context, repo *archive.Repository, label string) (string, error) {
	entries, err := archive.List(ctx, repo, time.Now())
	if err != nil {
		return "", err
	}
	id, running := "", ""
	for _, e := range entries {
		switch {
		case e.Label != label:
		case e.State == archive.Incomplete:
			id = e.ID
		case e.State == archive.Running:
			running = e.ID
		}
	}
	switch {
	case id == "" && running != "":
		return "", fmt.Errorf("resume: backup %s still runs, or was killed elsewhere less than five minutes ago", running)
	case id == "":
		return "", fmt.Errorf("resume: %s holds no unfinished backup of %s; weir backup list shows what there is", repo, label)
	}
	return id, nil
}

// backupOutcome is the output of `weir backup --json`.
type backupOutcome struct {
	*notice.Outcome
	Server   archive.Server      `json:"server"`            // the server that was backed up
	Position archive.Position    `json:"position"`          // in the server's log, that the backup is of
	Details  []backup.TableStats `json:"details,omitempty"` // each table

	Workers   []bulk.WorkerPoolStats `json:"workers,omitempty"`   // each pool of workers
	Pipeline  archive.Pipeline       `json:"pipeline"`            // the time of the chunks, by stage, summed over workers
	Shares    archive.Shares         `json:"limit"`               // what the time was spent waiting for
	Footprint *bulk.Footprint        `json:"footprint,omitempty"` // the memory of this process at its peak
}

// report prints the outcome.
func (v *backupVerb) report(out *notice.Outcome, r *backup.Result, stdout, stderr io.Writer) error {
	if v.json.Given() {
		return v.json.Print(stdout, backupOutcome{out, r.Manifest.Server, r.Manifest.Position, r.Tables, r.Workers, r.Pipeline, r.Pipeline.Shares(), v.footprint})
	}
	if v.quiet {
		return nil
	}
	printWarnings(stderr, out.Warnings)
	to := stdout
	if v.to == "-" {
		to = stderr
	}
	_, err := fmt.Fprintf(to, "backup %s: %d tables, %d rows, %s in %s, %s (%s/s)\n", out.ID, out.Tables, out.Rows,
		cli.ByteText(out.PlainBytes), cli.ByteText(out.StoredBytes), durationText(out.Elapsed), cli.ByteText(float64(out.PlainBytes)/out.Elapsed.Seconds()))
	return err
}

// profileList is the output of `weir backup profiles --json`.
type profileList struct {
	CPUs        int            `json:"cpus"`         // processors of this machine
	MemoryBytes int64          `json:"memory_bytes"` // free
	Recommended string         `json:"recommended"`  // name of a profile
	Profiles    []bulk.Profile `json:"profiles"`     // as they are on this machine
}

// newBackupProfilesCommand returns the verb that prints the profiles.
func newBackupProfilesCommand() *cobra.Command {
	var asJSON cli.JSON[profileList]
	cmd := &cobra.Command{
		Use:   "profiles",
		Short: "Show the profiles, and which one fits this machine",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			machine := bulk.ThisMachine()
			best := bulk.Recommend(machine)
			var fitted []bulk.Profile
			for _, p := range bulk.Profiles() {
				f, err := bulk.ProfileNamed(p.Name, machine)
				if err != nil {
					return err
				}
				fitted = append(fitted, f)
			}
			if asJSON.Given() {
				return asJSON.Print(cmd.OutOrStdout(), profileList{machine.CPUs, machine.MemoryBytes, best.Name, fitted})
			}
			return printProfiles(cmd.OutOrStdout(), machine, best, fitted)
		},
	}
	asJSON.Flag(cmd.Flags(), "print JSON")
	return cmd
}

func printProfiles(w io.Writer, m bulk.Machine, best bulk.Profile, fitted []bulk.Profile) error {
	fmt.Fprintf(w, "This machine: %d processors, %s of memory free. Jobs are cut to twice the processors.\n\n", m.CPUs, cli.ByteText(m.MemoryBytes))
	fmt.Fprintf(w, "  %-16s %5s %10s %14s\n", "profile", "jobs", "databases", "index memory")
	for _, p := range fitted {
		mark := " "
		if p.Name == best.Name {
			mark = "*"
		}
		fmt.Fprintf(w, "%s %-16s %5d %10d %14s\n", mark, p.Name, p.Jobs, p.Databases, cli.ByteText(p.MaintenanceBytes(m, p.Jobs)))
	}
	_, err := fmt.Fprintln(w, "\n* is what --profile auto takes.")
	return err
}
