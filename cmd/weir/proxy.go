package main

import (
	"context"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/pgwire"
	"github.com/weirdb/weir/internal/proxy"
)

func newProxyCommand() *cobra.Command {
	var dsn string
	var cfg proxy.Config
	cmd := &cobra.Command{
		Use:   "proxy --postgres DSN",
		Short: "PostgreSQL proxy: pools connections, pipelines reads, groups writes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pg, err := pgwire.ParseDSN(dsn)
			if err != nil {
				return err
			}
			cfg.Postgres = pg
			return runProxy(cmd.Context(), cfg)
		},
	}
	f := cmd.Flags()
	f.StringVar(&dsn, "postgres", "", "connection string of the PostgreSQL server")
	f.StringVar(&cfg.Listen, "listen-postgres", "127.0.0.1:6432", "address for PostgreSQL clients")
	f.IntVar(&cfg.PoolSize, "pool-size", 20, "most server connections per user and database")
	return cmd
}

func runProxy(ctx context.Context, cfg proxy.Config) error {
	srv, err := proxy.New(cfg)
	if err != nil {
		return err
	}
	slog.Info("weir proxy listens", "address", srv.Addr().String())
	return srv.Run(ctx)
}
