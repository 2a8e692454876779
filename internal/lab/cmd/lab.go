package labcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/lab"
)

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
	engine            string
	durabilityName    string
	durability        lab.Durability // from durabilityName
	fsyncLatency      time.Duration
	port              int
	maxConnections    int
	sharedBuffers     string
	bufferPool        string
	auth              string
	tlsName           string
	tls               lab.TLSMode // from tlsName
	settings          map[string]string
	binDir            string
	binlog            bool
	performanceSchema bool
	pgbouncer         bool
	json              cli.JSON[labReport]
}

func newLabUpCommand() *cobra.Command {
	var c labUp
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a server and run it until Ctrl-C, then remove it",
		Long: `Start a server in a temporary directory on a free loopback port, print how to
reach it, and run it until Ctrl-C or SIGTERM. Then everything is removed; if weir
itself is killed, the server dies with it and the next start removes its files.

--engine chooses the server: a database (postgres, mariadb, mysql), a broker
(nats, redis, rabbitmq, kafka), an object store (s3), or etcd with three members. It
must be installed; if it is not, the error names the command that installs it. For a
server in an unusual place give --bin-dir, or set a variable such as WEIR_PG_BIN:
docs/lab.md lists them.

Several engines, separated by commas, start side by side. The flags configure the
first; the others take only its durability.

Without --auth, any user of this machine is superuser of the server.`,
		Example: `  weir lab up
  weir lab up --fsync-latency 2ms          # commits as slow as on a cloud disk
  weir lab up --set wal_level=logical --json
  weir lab up --engine mariadb --set innodb_lock_wait_timeout=5
  weir lab up --engine postgres,nats       # a database and a broker`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			return c.run(ctx, stop, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.engine, "engine", enginePostgres, "the server to start, or several with commas: "+strings.Join(labEngines, ", "))
	postgres := f.Bool("postgres", true, "start PostgreSQL: the same as --engine postgres")
	f.StringVar(&c.durabilityName, "durability", "prod", "prod (flush at each commit) or fast (never flush)")
	f.DurationVar(&c.fsyncLatency, "fsync-latency", 0, "make each flush take this much longer, such as 2ms")
	f.IntVar(&c.port, "port", 0, "port to listen on (default: a free one)")
	f.IntVar(&c.maxConnections, "max-connections", 300, "how many connections a database server takes")
	f.StringVar(&c.sharedBuffers, "shared-buffers", "128MB", "PostgreSQL's own cache")
	f.StringVar(&c.bufferPool, "buffer-pool", "128M", "MariaDB's or MySQL's own cache")
	f.BoolVar(&c.binlog, "binlog", true, "MariaDB and MySQL: keep a binary log with GTIDs, flushed at each commit")
	f.BoolVar(&c.performanceSchema, "performance-schema", true, "MariaDB and MySQL: turn the performance schema on")
	f.StringVar(&c.auth, "auth", "trust", "trust or password; PostgreSQL: also md5 or scram-sha-256")
	f.StringVar(&c.tlsName, "tls", "offered", "offered (the DSN asks for none), off, optional, mutual or required (--tls alone), with a certificate authority of the server's own")
	f.Lookup("tls").NoOptDefVal = "required"
	f.StringToStringVar(&c.settings, "set", nil, "server parameters, as name=value")
	f.StringVar(&c.binDir, "bin-dir", "", "directory of the server's programs (default: the newest installed)")
	f.BoolVar(&c.pgbouncer, "pgbouncer", false, "start PgBouncer in front of PostgreSQL, pooling by transaction")
	c.json.Flag(cmd.Flags(), "print one line of JSON instead of text")
	cli.Words(cmd, "engine", labEngines...)
	cli.Words(cmd, "durability", "prod", "fast")
	cli.Words(cmd, "auth", "trust", "password", "md5", "scram-sha-256")
	cli.Words(cmd, "tls", "offered", "off", "optional", "mutual", "required")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if f.Changed("postgres") {
			switch {
			case !*postgres && c.engine == enginePostgres:
				return errors.New("nothing to start: --postgres=false leaves no server")
			case *postgres && c.engine != enginePostgres:
				return fmt.Errorf("--postgres and --engine %s: name every server in --engine", c.engine)
			}
		}
		return c.validate(f.Changed)
	}
	return cmd
}

func (c *labUp) validate(given func(flag string) bool) (err error) {
	if c.durability, err = lab.ParseDurability(c.durabilityName); err != nil {
		return fmt.Errorf("--durability: %w", err)
	}
	if c.tls, err = lab.ParseTLSMode(c.tlsName); err != nil {
		return fmt.Errorf("--tls: %w", err)
	}
	return c.validateEngines(given)
}

// labServer describes one running server to a user or script.
type labServer struct {
	Name    string   `json:"name"`                 // postgres, mysql, pgbouncer and so on
	Version string   `json:"version"`              // as the server reports it
	DSN     string   `json:"dsn"`                  // connection string
	Host    string   `json:"host"`                 // address
	Port    int      `json:"port"`                 // TCP port
	PID     int      `json:"pid"`                  // process id
	Socket  string   `json:"socket_dir,omitempty"` // directory of its Unix socket
	Data    string   `json:"data_dir,omitempty"`   // data directory
	CACert  string   `json:"ca_cert,omitempty"`    // file with the certificate that clients verify
	Env     []string `json:"env,omitempty"`        // what clients read from their environment, NAME=value
}

// labReport is the output of `weir lab up --json`, on one line, when all servers accept
// connections.
type labReport struct {
	Durability     string            `json:"durability"`         // how commits reach the disk: see weir lab up --durability
	FsyncLatencyNs int64             `json:"fsync_latency_ns"`   // latency that each flush has, in nanoseconds; 0: the disk's own
	Settings       map[string]string `json:"settings,omitempty"` // settings of the server that --set changed
	Psql           string            `json:"psql,omitempty"`     // a command that connects psql
	Client         string            `json:"client,omitempty"`   // a command that connects the client of the first server
	Servers        []labServer       `json:"servers"`            // each server that runs
}

// portIsFree refuses a port that another program listens on, with a shorter error than the
// server's log would have.
func (c *labUp) portIsFree() error {
	if c.port == 0 {
		return nil
	}
	ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("--port %d: another program listens there: choose another, or leave --port out for a free one", c.port)
	}
	if err == nil {
		err = ln.Close()
	}
	if err != nil {
		return fmt.Errorf("--port %d: %w", c.port, err)
	}
	return nil
}

// run starts the servers, reports them, and stops them when ctx ends. After that, release
// restores the default handling of signals: a second Ctrl-C ends weir at once.
func (c *labUp) run(ctx context.Context, release func(), out io.Writer) (err error) {
	if err := c.portIsFree(); err != nil {
		return err
	}
	fleet := newLabFleet()
	defer func() { err = errors.Join(err, fleet.stop()) }()
	for _, one := range c.each() {
		if err := fleet.add(ctx, one); err != nil {
			return err
		}
	}
	report := labReport{
		Durability: c.durability.String(), FsyncLatencyNs: c.fsyncLatency.Nanoseconds(),
		Settings: c.settings, Servers: fleet.servers,
	}
	for _, client := range fleet.clients {
		report.Client = cmp.Or(report.Client, client.command)
		if client.name == "psql" {
			report.Psql = client.command
		}
	}
	if err := c.print(out, report, fleet.clients); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		release()
		return nil
	case s := <-fleet.ended:
		return fmt.Errorf("%s ended by itself; its last words:\n%s", s.engine, s.LogTail(10))
	}
}

func (c *labUp) print(out io.Writer, r labReport, clients []labClient) error {
	if c.json.Given() {
		return c.json.Line(out, r)
	}
	disk := r.Durability
	if r.FsyncLatencyNs > 0 {
		disk += fmt.Sprintf(", each flush %v slower", time.Duration(r.FsyncLatencyNs))
	}
	for _, s := range r.Servers {
		if _, err := fmt.Fprintf(out, "%-10s %s  (%s, pid %d)\n", s.Name, s.DSN, s.Version, s.PID); err != nil {
			return fmt.Errorf("print servers: %w", err)
		}
		if len(s.Env) == 0 {
			continue
		}
		if _, err := fmt.Fprintf(out, "%-10s %s\n", "env", strings.Join(s.Env, " ")); err != nil {
			return fmt.Errorf("print servers: %w", err)
		}
	}
	for _, client := range clients {
		if _, err := fmt.Fprintf(out, "%-10s %s\n", client.name, client.command); err != nil {
			return fmt.Errorf("print servers: %w", err)
		}
	}
	_, err := fmt.Fprintf(out, "%-10s %s\n", "durability", disk)
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
