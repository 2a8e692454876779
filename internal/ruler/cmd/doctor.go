package rulercmd

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure/check"
	"github.com/weirdb/weir/internal/ruler/doctor"
)

func newDoctorCommand() *cobra.Command {
	var c doctor.Config
	var asJSON cli.JSON[[]check.Check]
	var file, of string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the measuring tools of this machine, or the servers of a configuration",
		Long: `Try what weir and other measuring tools rely on: clocks, timers, the disk's flush,
kernel counters, profilers, tracers, networks, and the installed servers. Nothing is
changed; it takes a second or two.

With -c FILE it checks a configuration of weir proxy instead: it logs in to each server
that the file names, as weir would, and compares versions, roles, privileges,
connections and durability with what the file needs. weir config check --connect does
the same, and is part of slim builds, too. Exit code 3: something does not work.`,
		Example: `  weir doctor
  weir doctor -c /etc/weir/weir.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file != "" {
				return cli.Examine(cmd, file, of, &asJSON)
			}
			checks, err := doctor.Examine(cmd.Context(), c)
			if err != nil {
				return err
			}
			checks = append(checks, findServers(cmd.Context())...)
			if asJSON.Given() {
				return asJSON.Print(cmd.OutOrStdout(), checks)
			}
			return check.Print(cmd.OutOrStdout(), checks)
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Dir, "dir", "", "directory of the disk to measure (default the temporary one)")
	f.StringVarP(&file, "config", "c", "", "check the servers that this configuration `FILE` names")
	f.StringVar(&of, "of", "", "with -c: the `VERB` that the file is for")
	asJSON.Flag(f, "print JSON")
	return cmd
}

// place returns where a program is: its directory.
func place(path, version string, err error) (string, string, error) {
	return filepath.Dir(path), version, err
}

// findServers looks for the servers that the lab can start and the tools that weir is compared
// with.
func findServers(ctx context.Context) []doctor.Check {
	found := func(name, what string, version func() (string, string, error)) doctor.Check {
		c := doctor.Check{Name: name, State: doctor.Yes, For: what}
		dir, v, err := version()
		var missing *lab.NotInstalledError
		switch {
		case errors.As(err, &missing):
			c.State, c.Detail, c.Hint = doctor.No, "not installed", missing.Hint
		case err != nil:
			c.State, c.Detail = doctor.No, err.Error()
		default:
			c.Detail = v + " in " + dir
		}
		return c
	}
	program := func(name, what, hint string) doctor.Check {
		c := doctor.Check{Name: name, State: doctor.Yes, For: what}
		path, err := exec.LookPath(name)
		if err != nil {
			c.State, c.Detail, c.Hint = doctor.No, "not installed", hint
			return c
		}
		c.Detail = path
		return c
	}
	return []doctor.Check{
		found("PostgreSQL", "weir lab, demo and bench", func() (string, string, error) { return lab.FindPostgres(ctx, "") }),
		found("MariaDB", "weir lab and bench", func() (string, string, error) { return lab.FindMySQL(ctx, lab.FlavorMariaDB, "") }),
		found("MySQL", "weir lab and bench", func() (string, string, error) { return lab.FindMySQL(ctx, lab.FlavorMySQL, "") }),
		found("NATS", "weir lab", func() (string, string, error) { return place(lab.FindNATS(ctx, "")) }),
		found("Redis", "weir lab", func() (string, string, error) { return place(lab.FindRedis(ctx, "")) }),
		found("RabbitMQ", "weir lab", func() (string, string, error) { return place(lab.FindRabbitMQ(ctx, "")) }),
		found("Kafka", "weir lab", func() (string, string, error) { return lab.FindKafka(ctx, "") }),
		found("versitygw", "weir lab: S3", func() (string, string, error) { return place(lab.FindS3(ctx, "")) }),
		program("pgbouncer", "a peer to compare with", "apt-get install pgbouncer"),
		program("pgbench", "a load generator to compare with", "apt-get install postgresql-contrib"),
		program("sysbench", "a load generator to compare with", "apt-get install sysbench"),
		program("cc", "slow disks in the lab (--fsync-latency)", "apt-get install gcc"),
	}
}
