package backupbench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/moves"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// file describes the files of a run.
var file = &suite.File{Name: "backup.json", Bench: "backup"}

// Save writes the outcome next to its results, and the report in every format. It returns the
// path of the HTML page.
func (o *Outcome) Save(dir string) (string, error) { return file.Save(dir, o) }

// Bench is weir bench backup. weir returns the root command, whose verbs are profiled.
func Bench(weir func() *cobra.Command) suite.Bench {
	return suite.Bench{Verb: newCommand(&flags{weir: weir}), File: file, New: func() suite.Run { return &Outcome{} }}
}

// flags are the configuration of weir bench backup.
type flags struct {
	suite.Flags
	suite.ServerFlags
	overrides
	weir   func() *cobra.Command
	binDir string
	tools  []string
	sides  []string
	size   string
	shapes []string
	rounds int
	floor  bool
	seed   uint64
}

func newCommand(c *flags) *cobra.Command {
	c.ServerFlags = suite.ServerFlags{Engines: Engines(), Flag: "db"}
	cmd := &cobra.Command{
		Use:   "backup",
		Short: "Compare weir's backup and restore with the server's own tools and mydumper",
		Long: `Measure what buffers, compression and copies cost in this process; then whole backups
and restores by weir, pg_dump and pg_restore, or mydumper, myloader and mariadb-dump, in
turn (A B B A), on realistic data that is generated from a seed; and weir's memory at
two sizes.

Every archive is checked by its own tool, and every restored database is compared with
its source. The report names tools that are not found; --tools says where to look for
others, such as a newer pg_dump.

With --db everything runs on an existing server. The databases weir_bench_source and
weir_bench_copy are created there and dropped; that server's processor time is not
measured.`,
		Example: `  weir bench backup --plan mini
  weir bench backup --plan full --size 766MB --tools /usr/lib/postgresql/17/bin --out out/backup --resume
  weir bench backup --jobs 1,2,4 --profiles balanced,turbo --block-size 256KB,1MB --compress-workers 1,2,8
  weir bench backup --storage dir,s3 --experiments storage-shop
  weir bench backup --engine mariadb --shapes shop,huge`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := c.options(cmd.Flags().Changed)
			if err != nil {
				return cli.UsageError(err)
			}
			o.ReportProgress(cmd.ErrOrStderr(), "", peak)
			out, err := Run(cmd.Context(), o)
			if out == nil {
				return err
			}
			return c.Finish(file, o.Out, out, err, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	c.Flags.Add(f, "backup", suite.Names(Plans(1))+" (smoke: seconds, with meaningless figures)")
	c.ServerFlags.Add(f)
	cli.Renamed(cmd, "dsn", "db")
	c.ServerFlags.Completions(cmd)
	f.StringVar(&c.binDir, "bin-dir", "", "directory of the private server's programs (default the newest installed)")
	f.StringSliceVar(&c.tools, "tools", nil, "directories to search for other tools first")
	f.StringVar(&c.size, "size", "", "size as text of the database shop; the others are fractions of it (default by the plan: 1MB, 64MB, 766MB)")
	f.StringSliceVar(&c.shapes, "shapes", nil, "of the plan's databases, only these: shop, many, huge, text, binary, random")
	cli.Takes(f, "shapes", "shop", "many", "huge", "text", "binary", "random")
	f.StringArrayVar(&c.sides, "side", nil, "compare only sides whose names match, such as 'pg_dump 17*' (repeatable)")
	f.BoolVar(&c.floor, "floor", false, "also measure a program that only copies the rows, to zstd files that it does not flush (PostgreSQL)")
	f.IntVar(&c.rounds, "rounds", 0, "rounds of each experiment with whole programs, instead of the plan's")
	f.IntSliceVar(&c.jobs, "jobs", nil, "jobs that weir runs at once; several numbers are compared (default the processors)")
	f.StringSliceVar(&c.blocks, "block-size", nil, "sizes of gzip's blocks to compare, such as 256KB,1MB")
	f.IntSliceVar(&c.workers, "compress-workers", nil, "numbers of gzip's workers to compare")
	f.StringSliceVar(&c.profiles, "profiles", nil, "profiles of weir to compare, instead of the plan's: "+strings.Join(profileNames(), ", "))
	cli.Takes(f, "profiles", profileNames()...)
	f.StringSliceVar(&c.storage, "storage", nil, "places of archives to compare: dir,s3 (a private S3 server, versitygw)")
	cli.Takes(f, "storage", "dir", "s3")
	f.Uint64Var(&c.seed, "seed", 1, "seed of the data")
	cmd.AddCommand(floorCommands()...)
	return cmd
}

// peak formats the peak memory of a round.
func peak(s *bench.Sample) string {
	t := moves.Of(s.Parts)
	if t == nil || t.PeakBytes == 0 {
		return ""
	}
	return "  peak " + cli.ByteText(t.PeakBytes)
}

// options checks the flags against each other.
func (c *flags) options(changed func(string) bool) (o Options, err error) {
	if o.Plan, err = c.plan(); err != nil {
		return o, err
	}
	if err := c.Complete(changed); err != nil {
		return o, err
	}
	for _, pattern := range c.sides {
		if _, err := path.Match(pattern, ""); err != nil {
			return o, fmt.Errorf("--side %q: %w", pattern, err)
		}
	}
	if c.floor && c.Engine != suite.PostgreSQL {
		return o, fmt.Errorf("--floor: --engine %s has none", c.Engine)
	}
	o.Engine, o.DSN, o.BinDir, o.Tools, o.Seed = c.Engine, c.DSN, c.binDir, c.tools, c.seed
	o.Sides, o.Floor = c.sides, c.floor
	if o.Options, err = c.Options("backup", Steps(o)); err != nil {
		return o, err
	}
	if o.Binary, err = os.Executable(); err != nil {
		return o, fmt.Errorf("find this program: %w", err)
	}
	o.Verb = func(ctx context.Context, args []string) error {
		root := c.weir()
		root.SetArgs(args)
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		return root.ExecuteContext(ctx)
	}
	return o, nil
}

// plan is the requested plan, at its size.
func (c *flags) plan() (Plan, error) {
	size := DefaultSize(c.Plan)
	if c.size != "" {
		n, err := cli.ParseSize(c.size)
		if err != nil || n < 1 {
			return Plan{}, fmt.Errorf("--size %q: want bytes, such as 766MB", c.size)
		}
		size = int64(n)
	}
	plan, err := suite.PlanOf(&c.Flags, Plans(size))
	if err != nil {
		return plan, err
	}
	if len(c.shapes) > 0 {
		var chosen []Size
		for _, name := range c.shapes {
			i := slices.IndexFunc(plan.Shapes, func(s Size) bool { return s.Shape == name })
			if i < 0 {
				return plan, fmt.Errorf("--shapes: plan %s has no %q", c.Plan, name)
			}
			chosen = append(chosen, plan.Shapes[i])
		}
		plan.Shapes = chosen
	}
	if c.rounds < 0 {
		return plan, errors.New("--rounds: want at least 1")
	}
	plan.Rounds = cmp.Or(c.rounds, plan.Rounds)
	return plan.with(c.overrides)
}
