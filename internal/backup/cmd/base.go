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
	"github.com/weirdb/weir/internal/backup/bulk"
	"github.com/weirdb/weir/internal/backup/notice"
	"github.com/weirdb/weir/internal/backup/wal"
	"github.com/weirdb/weir/internal/cli"
)

// scopeBase is the scope in the manifests of base backups.
const scopeBase = wal.ScopeBase

// baseVerb is the configuration of `weir backup base`.
type baseVerb struct {
	options  wal.BaseOptions
	archive  archiveFlags
	hooks    notice.Hooks
	to       string
	id       string
	label    string
	maxRate  string
	json     cli.JSON[baseOutcome]
	quiet    bool
	progress string
	admin    adminFlag
}

func newBackupBaseCommand() *cobra.Command {
	var v baseVerb
	cmd := &cobra.Command{
		Use:   "base [DSN]",
		Short: "Back up a whole PostgreSQL cluster byte for byte, as a base for its log",
		Long: `Copy the files of a running PostgreSQL cluster over the replication protocol. The
role needs the attribute REPLICATION, and pg_hba.conf a line for the database
"replication".

The backup includes the log that is needed to start it. If weir backup wal archives the
log in the same place, weir restore --to-dir can restore any later moment.`,
		Example: `  weir backup base postgres://postgres@db/ --to /backups
  weir restore /backups --to-dir /var/lib/postgresql/15/main --owner postgres`,
		Args: cobra.MaximumNArgs(1),
		PreRunE: func(_ *cobra.Command, args []string) error {
			v.options.DSN = "postgres://"
			if len(args) > 0 {
				v.options.DSN = args[0]
			}
			return v.complete()
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return v.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&v.to, "to", "", "where to: DIR or s3://BUCKET/PREFIX (required)")
	f.StringVar(&v.id, "id", "", "name of the backup (default the time and the label)")
	f.StringVar(&v.label, "label", "base", "name under which prune's rules count this backup")
	f.BoolVar(&v.options.Spread, "spread-checkpoint", false, "have the server spread its checkpoint over minutes")
	f.BoolVar(&v.options.NoWAL, "no-wal", false, "leave out the log; weir backup wal must then archive it")
	f.StringVar(&v.maxRate, "max-rate", "", "maximum bytes per second that the server sends, such as 50MB")
	v.archive.add(f)
	addHooks(f, &v.hooks)
	v.admin.add(f)
	v.json.Flag(cmd.Flags(), "print the outcome as JSON")
	f.BoolVarP(&v.quiet, "quiet", "q", false, "print errors only")
	f.StringVar(&v.progress, "progress", "auto", "auto (a bar on a terminal, else lines), bar, plain or none")
	cli.Takes(f, "progress", "auto", "bar", "plain", "none")
	return cmd
}

func (v *baseVerb) complete() error {
	switch {
	case v.to == "":
		return errors.New("no place for the backup: give --to a directory or s3://BUCKET/PREFIX")
	case v.to == "-" || strings.HasSuffix(v.to, ".tar"):
		return errors.New("--to: a base backup goes into a directory or a bucket, beside its log")
	case familyOf(v.options.DSN) != familyPostgres:
		return fmt.Errorf("base backups are of PostgreSQL, and the DSN names a server of %s", familyOf(v.options.DSN))
	}
	if v.maxRate != "" {
		n, err := cli.ParseSize(v.maxRate)
		if err != nil {
			return fmt.Errorf("--max-rate %q: %w", v.maxRate, err)
		}
		v.options.MaxRate = int64(n)
	}
	if err := v.hooks.Validate(); err != nil {
		return err
	}
	if err := checkProgress(v.progress); err != nil {
		return err
	}
	v.options.Progress = &bulk.Progress{}
	_, err := v.archive.options()
	return err
}

// baseOutcome is the output of `weir backup base --json`.
type baseOutcome struct {
	*notice.Outcome
	Server   archive.Server   `json:"server"`   // the server that was backed up
	Position archive.Position `json:"position"` // from which the log makes the backup consistent
}

// run takes the backup and reports its outcome.
func (v *baseVerb) run(ctx context.Context, stdout, stderr io.Writer) error {
	out := &notice.Outcome{Label: v.label, Location: placeText(v.to), Started: time.Now()}
	if err := v.hooks.Start(ctx, out, stderr); err != nil {
		out.Error, out.Elapsed = err.Error(), time.Since(out.Started)
		return errors.Join(err, v.hooks.Finish(ctx, out, stderr))
	}
	m, err := v.take(ctx, out, stderr)
	out.Elapsed = time.Since(out.Started)
	if m != nil {
		out.OK, out.PlainBytes, out.StoredBytes = true, m.Totals.PlainBytes, m.Totals.StoredBytes
	} else {
		out.Error = err.Error()
	}
	err = errors.Join(err, v.hooks.Finish(ctx, out, stderr))
	switch {
	case m == nil || v.quiet && !v.json.Given():
		return err
	case v.json.Given():
		return errors.Join(err, v.json.Print(stdout, baseOutcome{out, m.Server, m.Position}))
	}
	_, e := fmt.Fprintf(stdout, "base backup %s: %s in %s, %s (%s/s), consistent at %s on timeline %d\n", out.ID,
		cli.ByteText(out.PlainBytes), cli.ByteText(out.StoredBytes), durationText(out.Elapsed),
		cli.ByteText(float64(out.PlainBytes)/out.Elapsed.Seconds()), m.Position.LSN, m.Position.Timeline)
	return errors.Join(err, e)
}

func (v *baseVerb) take(ctx context.Context, out *notice.Outcome, stderr io.Writer) (_ *archive.Manifest, err error) {
	unserve, err := v.admin.serve(ctx, "base backup", v.label+" → "+out.Location, v.options.Progress, stderr)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unserve()) }()
	opts, err := v.archive.options()
	if err != nil {
		return nil, err
	}
	opts.ID, opts.Label = v.id, v.label
	repo, err := archive.OpenRepository(ctx, v.to)
	if err != nil {
		return nil, err
	}
	w, err := archive.Create(ctx, repo, opts)
	if err != nil {
		return nil, err
	}
	out.ID = w.ID()
	mode := v.progress
	if v.quiet {
		mode = "none"
	}
	stop := showProgress("base backup", mode, v.options.Progress, stderr)
	defer stop()
	return wal.TakeBase(ctx, v.options, w)
}
