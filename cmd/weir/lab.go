package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/lab"
)

// labStopPatience bounds how long servers are asked nicely to stop.
const labStopPatience = 20 * time.Second

func newLabCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Start private, throwaway real servers",
	}
	cmd.AddCommand(newLabUpCommand())
	return cmd
}

// labUp is the configuration of `weir lab up`.
type labUp struct {
	postgres   lab.PostgresConfig
	durability string
	auth       string
	tls        bool
	pgbouncer  bool
	json       bool
}

func newLabUpCommand() *cobra.Command {
	var c labUp
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a server and run it until Ctrl-C, then remove it",
		Long: `Start a server in a temporary directory on a free loopback port, print how to
reach it, and run it until Ctrl-C or SIGTERM. Then everything is removed; if weir
itself is killed, the server dies with it and the next start removes its files.

Without --auth, any user of this machine is superuser of the server.`,
		Example: `  weir lab up
  weir lab up --fsync-latency 2ms          # commits as slow as on a cloud disk
  weir lab up --set wal_level=logical --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			return c.run(ctx, stop, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	postgres := f.Bool("postgres", true, "start PostgreSQL, the one server there is so far")
	f.StringVar(&c.durability, "durability", "prod", "prod (flush at each commit) or fast (never flush)")
	f.DurationVar(&c.postgres.FsyncLatency, "fsync-latency", 0, "make each flush take this much longer, such as 2ms")
	f.IntVar(&c.postgres.Port, "port", 0, "port to listen on (default: a free one)")
	f.IntVar(&c.postgres.MaxConnections, "max-connections", 300, "how many connections the server takes")
	f.StringVar(&c.postgres.SharedBuffers, "shared-buffers", "128MB", "the server's own cache")
	f.StringVar(&c.auth, "auth", "trust", "trust, password, md5 or scram-sha-256")
	f.BoolVar(&c.tls, "tls", false, "require TLS, with a certificate authority of the server's own")
	f.StringToStringVar(&c.postgres.Settings, "set", nil, "server parameters, as name=value")
	f.StringVar(&c.postgres.BinDir, "bin-dir", "", "directory of postgres and initdb (default: the newest installed)")
	f.BoolVar(&c.pgbouncer, "pgbouncer", false, "start PgBouncer in front, pooling by transaction")
	f.BoolVar(&c.json, "json", false, "print one line of JSON instead of text")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if !*postgres {
			return errors.New("nothing to start: --postgres=false leaves no server")
		}
		return c.validate()
	}
	return cmd
}

func (c *labUp) validate() (err error) {
	if c.postgres.Durability, err = lab.ParseDurability(c.durability); err != nil {
		return fmt.Errorf("--durability: %w", err)
	}
	c.postgres.Auth = lab.Auth(c.auth)
	if c.tls {
		c.postgres.TLS = lab.TLSRequired
	}
	return nil
}

// labServer is what a user or script needs to know of one running server.
type labServer struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	DSN     string `json:"dsn"`
	Host    string `json:"host"`
	Port    int    `json:"port"`
	PID     int    `json:"pid"`
	Socket  string `json:"socket_dir,omitempty"`
	Data    string `json:"data_dir,omitempty"`
	CACert  string `json:"ca_cert,omitempty"`
}

// labReport is what `weir lab up --json` prints, on one line, once all servers
// take connections.
type labReport struct {
	Durability     string            `json:"durability"`
	FsyncLatencyNs int64             `json:"fsync_latency_ns"`
	Settings       map[string]string `json:"settings,omitempty"`
	Psql           string            `json:"psql"`
	Servers        []labServer       `json:"servers"`
}

// run starts the servers, reports them, and stops them when ctx ends. After
// that, release gives the signals back: a second Ctrl-C ends weir at once.
func (c *labUp) run(ctx context.Context, release func(), out io.Writer) (err error) {
	pg, err := lab.StartPostgres(ctx, c.postgres)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopLab(pg.Stop)) }()
	report := labReport{
		Durability: c.postgres.Durability.String(), FsyncLatencyNs: c.postgres.FsyncLatency.Nanoseconds(),
		Settings: c.postgres.Settings,
		Psql:     fmt.Sprintf("%s '%s'", filepath.Join(pg.BinDir(), "psql"), pg.DSN("postgres")),
		Servers: []labServer{{
			Name: "postgres", Version: pg.Version(), DSN: pg.DSN("postgres"), Host: pg.Host(), Port: pg.Port(),
			PID: pg.PID(), Socket: pg.SocketDir(), Data: pg.DataDir(), CACert: pg.CACert(),
		}},
	}
	if c.pgbouncer {
		b, err := lab.StartPgBouncer(ctx, pg, lab.PgBouncerConfig{})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stopLab(b.Stop)) }()
		report.Servers = append(report.Servers, labServer{
			Name: "pgbouncer", Version: b.Version(), DSN: b.DSN("postgres"), Host: pg.Host(), Port: b.Port(), PID: b.PID(),
		})
	}
	if err := c.print(out, report); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		release()
		return nil
	case <-pg.Done():
		return fmt.Errorf("PostgreSQL ended by itself; its last words:\n%s", pg.LogTail(10))
	}
}

// stopLab stops one server, whatever has become of the command's own context.
func stopLab(stop func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), labStopPatience)
	defer cancel()
	return stop(ctx)
}

func (c *labUp) print(out io.Writer, r labReport) error {
	if c.json {
		if err := json.NewEncoder(out).Encode(r); err != nil {
			return fmt.Errorf("print servers: %w", err)
		}
		return nil
	}
	disk := r.Durability
	if r.FsyncLatencyNs > 0 {
		disk += fmt.Sprintf(", each flush %v slower", time.Duration(r.FsyncLatencyNs))
	}
	for _, s := range r.Servers {
		if _, err := fmt.Fprintf(out, "%-10s %s  (%s, pid %d)\n", s.Name, s.DSN, s.Version, s.PID); err != nil {
			return fmt.Errorf("print servers: %w", err)
		}
	}
	_, err := fmt.Fprintf(out, "%-10s %s\n%-10s %s\n", "psql", r.Psql, "durability", disk)
	for _, name := range slices.Sorted(maps.Keys(r.Settings)) {
		_, e := fmt.Fprintf(out, "%-10s %s = %s\n", "setting", name, r.Settings[name])
		err = errors.Join(err, e)
	}
	_, e := fmt.Fprintln(out, "Ctrl-C stops and removes it.")
	if err = errors.Join(err, e); err != nil {
		return fmt.Errorf("print servers: %w", err)
	}
	return nil
}
