//go:build linux

package proxycmd

import (
	"context"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/measure/check"
	"github.com/weirdb/weir/internal/proxy/examine"
	"github.com/weirdb/weir/internal/proxy/process"
)

func newProxyCommand() *cobra.Command {
	loader := proxyLoader()
	var cfg proxyConfig
	cmd := &cobra.Command{
		Use:   "proxy [--postgres DSN] [--mysql DSN]",
		Short: "PostgreSQL and MySQL proxy: shares connections, pipelines and caches reads, groups writes",
		Long: `Proxy clients of PostgreSQL, of MySQL or MariaDB, or of both. Clients share few server
connections, and reads of many clients are pipelined. Reads that begin with /* ttl:5 */
are answered from a cache, and writes that begin with /* batch */ share transactions and
flushes of the log.

Every option can also be set in the environment (--pool-size as WEIR_POOL_SIZE)
or in a YAML file (pool_size). A flag overrides the environment, which overrides
the file. No password needs to be on the command line: PGPASSWORD, the password file
(~/.pgpass), WEIR_POSTGRES, MYSQL_PWD, WEIR_MYSQL and the YAML file hold it as well.

On SIGTERM and SIGINT /readyz fails for --shutdown-delay; then weir accepts no more
clients, lets transactions finish and exits with 0. A second signal exits at once.
SIGHUP, and RELOAD on the admin console, read the configuration again. A restart is
needed to change servers, addresses, --peer-id, --reuse-port, --mode, --loops,
--write-lanes, --group-limit, trusted functions, --otlp-endpoint, --otlp-headers,
--audit-log and --log-format. A configuration with a mistake changes nothing.`,
		Example: `  weir proxy --postgres postgres://app@db.example.com:5432/shop
  PGPASSWORD=... weir proxy --postgres 'host=/run/postgresql user=weir' --auth-query \
      'SELECT usename, passwd FROM pg_shadow WHERE usename = $1' --auth scram-sha-256
  weir proxy --mysql mysql://app@db.example.com:3306/shop
  weir proxy -c /etc/weir/weir.yaml --log-level debug
  psql -h 127.0.0.1 -p 6432 weir -c 'SHOW POOLS'       # the admin console
  psql -h 127.0.0.1 -p 6432 pgbouncer -c 'PAUSE shop'  # before the server restarts
  mariadb -h 127.0.0.1 -P 3307 weir -e 'SHOW POOLS'    # of the MySQL side`,
		Args: cobra.NoArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) (err error) {
			cfg, err = loadProxy(loader)
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return process.Run(cmd.Context(), cfg.process(), cfg.environment(loader, cmd.ErrOrStderr()))
		},
	}
	loader.AddFlags(cmd)
	cmd.Flags().SortFlags = true // completion lists them by name
	cli.Examined(cmd, func(ctx context.Context) []check.Check { return examine.Servers(ctx, cfg.servers()) })
	return cli.Checked(cmd)
}

// environment has the process log to stderr and read its configuration by the loader again.
func (c *proxyConfig) environment(loader *cli.Loader[proxyConfig], stderr io.Writer) process.Environment {
	return process.Environment{
		Load: func() (process.Config, []string, error) {
			now, err := loadProxy(loader)
			if err != nil {
				return process.Config{}, nil, err
			}
			return now.process(), c.needRestart(loader, &now), nil
		},
		Log:    func(level slog.Leveler) slog.Handler { return cli.NewLog(stderr, c.logFormat, level).Handler() },
		Stderr: stderr,
	}
}

// needRestart returns the keys of options that have changed and that a reload does not apply.
func (c *proxyConfig) needRestart(loader *cli.Loader[proxyConfig], now *proxyConfig) (keys []string) {
	for i := range loader.Options {
		if o := &loader.Options[i]; !o.Reload && now.found[o.Name].Text != c.found[o.Name].Text && !c.renews(o.Name, now) {
			keys = append(keys, o.Key())
		}
	}
	return keys
}

// renews reports whether an option names the same servers as at the start, with another
// password or other certificates at most: those are applied.
func (c *proxyConfig) renews(option string, now *proxyConfig) (same bool) {
	switch option {
	case "postgres":
		_, _, same = c.pg.Renewed(&now.pg)
	case "mysql":
		_, _, same = c.my.Renewed(&now.my)
	}
	return same
}
