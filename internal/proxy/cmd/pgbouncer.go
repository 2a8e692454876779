//go:build linux

package proxycmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/proxy/bouncer"
	"github.com/weirdb/weir/internal/proxy/pgbouncer"
)

func newPgBouncerCommand() *cobra.Command {
	var o bouncer.Options
	var quiet, daemon bool
	var user string
	cmd := &cobra.Command{
		Use:   "pgbouncer FILE.ini",
		Short: "Run a PgBouncer configuration as it is",
		Long: `Run the PostgreSQL proxy from a configuration of PgBouncer 1.25: the same file, ports,
users, console and signals. Settings that weir does not support are refused, with their
line and what to do; settings that do not apply to weir have no effect.
"weir proxy convert" lists both.

pool_mode transaction follows weir's own rule: another client gets a connection only
when no session state of the first is left on it, and a client whose state cannot be
moved keeps its connection. session and statement are as in PgBouncer.

Signals: SIGTERM ends weir when all clients have left, SIGINT when their transactions
have ended; a second one of either, or SIGQUIT, ends it at once. SIGHUP reads the file
again. SIGUSR1 is PAUSE, SIGUSR2 is RESUME.`,
		Example: `  weir pgbouncer /etc/pgbouncer/pgbouncer.ini
  weir pgbouncer -R /etc/pgbouncer/pgbouncer.ini   # in the place of the one that runs
  psql -h /tmp -p 6432 -U pgbouncer pgbouncer -c 'SHOW POOLS'`,
		Args:    cobra.ExactArgs(1),
		Version: bouncer.Version(),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			switch {
			case daemon:
				return errors.New("--daemon: weir does not leave the foreground: have systemd or another service manager start it")
			case user != "":
				return errors.New("--user: weir does not change the user that it runs as: start it as that one")
			}
			if o.Config, err = pgbouncer.Read(args[0]); err != nil {
				return cli.UsageError(err)
			}
			if !quiet {
				o.Stderr = cmd.ErrOrStderr()
			} else if o.Config.Text("logfile") == "" {
				o.Stderr = io.Discard
			}
			signals := make(chan os.Signal, 8)
			signal.Notify(signals, syscall.SIGTERM, os.Interrupt, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
			defer signal.Stop(signals)
			o.Signals = signals
			return bouncer.Run(cmd.Context(), o)
		},
	}
	cmd.SetVersionTemplate("{{.Version}}\n")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "write nothing to standard error")
	cmd.Flags().CountVarP(&o.Verbose, "verbose", "v", "write more into the log")
	cmd.Flags().BoolVarP(&o.TakeOver, "reboot", "R", false, "take the place of the process that serves the same file; it ends when its clients have left")
	cmd.Flags().BoolVarP(&daemon, "daemon", "d", false, "refused: use a service manager")
	cmd.Flags().StringVarP(&user, "user", "u", "", "refused: start it as that user")
	return cmd
}

func newConvertCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "convert FILE.ini",
		Short: "Write a PgBouncer configuration as weir.yaml",
		Long: `Convert a configuration of PgBouncer to a weir.yaml, on standard output. Settings that
have no effect become comments, with the reason. So do settings that weir.yaml cannot
express, such as databases on several servers or under other names. The exit code is
then 1; use "weir pgbouncer", which runs such a file unchanged.`,
		Example: `  weir proxy convert /etc/pgbouncer/pgbouncer.ini > weir.yaml`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := pgbouncer.Read(args[0])
			if err != nil {
				return cli.UsageError(err)
			}
			c := cfg.Convert()
			if _, err := io.WriteString(cmd.OutOrStdout(), c.YAML); err != nil {
				return err
			}
			if len(c.Left) > 0 {
				return fmt.Errorf("weir.yaml cannot say all of it:\n  %s\n\"weir pgbouncer %s\" runs it as it is", strings.Join(c.Left, "\n  "), args[0])
			}
			return nil
		},
	}
	cmd.SetUsageFunc(cli.PlainUsage) // that of proxy is about its options
	return cli.Below("proxy", cmd)
}
