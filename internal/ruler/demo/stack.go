package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/admin"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure"
)

// Config is the configuration of the demo.
type Config struct {
	Binary string // the weir program to run. Required.
	Out    string // directory for logs, profiles, the backup and the report. Required.
	Listen string // address of the web page. Default: 127.0.0.1:9180.
	// Duration ends the load. Default: it runs until ctx ends or, with Auto, until everything
	// has been killed once.
	Duration time.Duration
	Auto     bool // the demo kills by itself
	Workers  int  // of the shop. Default: 8.
	Stdout   io.Writer
}

// Flags adds the flags of weir demo --stack.
func (c *Config) Flags(f *pflag.FlagSet) {
	f.StringVar(&c.Listen, "listen", "127.0.0.1:9180", "with --stack: loopback `ADDRESS` of the page")
	f.DurationVar(&c.Duration, "duration", 0, "with --stack: end after this time (default Ctrl-C)")
	f.BoolVar(&c.Auto, "auto", false, "with --stack: kill everything once automatically, then end")
}

// Show runs the stack with the program weir. It reports whether every promise was kept.
func (c *Config) Show(ctx context.Context, weir, out string, stdout io.Writer) (held bool, err error) {
	cfg := *c
	cfg.Binary, cfg.Out, cfg.Stdout = weir, out, stdout
	v, err := Run(ctx, cfg)
	return err == nil && v.Held(), err
}

// The shop's database, and the stream that its events go to.
const (
	database = "shop"
	stream   = "SHOP"
)

// stack is everything that runs.
type stack struct {
	cfg    Config
	page   net.Listener
	ledger *ledger
	began  time.Time
	before measure.Pressure

	pg       sync.Mutex // held while the primary changes
	primary  atomic.Pointer[lab.Postgres]
	standby  atomic.Pointer[lab.Postgres] // nil until it has caught up
	hosts    []string                     // host:port of both, as the proxies know them
	nats     *lab.NATS
	kv       *lab.KV
	proxies  []*process
	relays   []*process
	front    *balancer // to the proxies
	leader   *balancer // to the primary
	profiled []string

	mu     sync.Mutex
	events []event // guarded by mu
	under  bool    // guarded by mu: something is being killed
	backup string  // guarded by mu: outcome of the backup
	failed bool    // guarded by mu: the backup or its comparison failed
}

// event is something that the demo did.
type event struct {
	at   time.Time
	what string
}

// say prints what the demo does.
func (s *stack) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.mu.Lock()
	s.events = append(s.events, event{time.Now(), text})
	s.mu.Unlock()
	fmt.Fprintf(s.cfg.Stdout, "%6.1f s  %s\n", time.Since(s.began).Seconds(), text)
}

// Run shows the stack and returns the verdict on its promises. An error says why it could not
// be shown; a broken promise is not an error.
func Run(ctx context.Context, cfg Config) (*Verdict, error) {
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:9180"
	}
	if cfg.Workers == 0 {
		cfg.Workers = 8
	}
	ln, err := listen(&cfg)
	if err != nil {
		return nil, err
	}
	defer func() { _ = ln.Close() }() // the page's server may have closed it already
	if err := os.MkdirAll(filepath.Join(cfg.Out, "logs"), 0o755); err != nil {
		return nil, fmt.Errorf("make the demo's directory: %w", err)
	}
	s := &stack{cfg: cfg, page: ln, ledger: newLedger(), began: time.Now(), before: measure.ReadPressure()}
	defer s.stop()
	if err := s.installed(ctx); err != nil {
		return nil, err
	}
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	return s.show(ctx)
}

// listen reserves the page's address before anything is started, and stores it in cfg.
func listen(cfg *Config) (net.Listener, error) {
	ln, err := net.Listen("tcp", cfg.Listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("listen for the page: %w (another demo runs? --listen 127.0.0.1:0 takes a free port)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen for the page: %w", err)
	}
	if !admin.IsLoopback(ln.Addr()) {
		_ = ln.Close()
		return nil, fmt.Errorf("listen for the page: %s is not of this machine alone, and the page kills processes", cfg.Listen)
	}
	cfg.Listen = ln.Addr().String()
	return ln, nil
}

// installed returns one error that lists everything that is missing.
func (s *stack) installed(ctx context.Context) error {
	var missing []string
	if _, _, err := lab.FindPostgres(ctx, ""); err != nil {
		missing = append(missing, "PostgreSQL")
	}
	if _, _, err := lab.FindNATS(ctx, ""); err != nil {
		missing = append(missing, "nats-server")
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s not found; on Debian and its relatives: apt-get install postgresql nats-server", strings.Join(missing, " and "))
	}
	return nil
}

// start starts everything.
func (s *stack) start(ctx context.Context) (err error) {
	s.say("starting PostgreSQL, its standby, NATS and three replicas of weir kv")
	primary, err := lab.StartPostgres(ctx, lab.PostgresConfig{})
	if err != nil {
		return err
	}
	s.primary.Store(primary)
	if s.nats, err = lab.StartNATS(ctx, lab.BrokerConfig{}); err != nil {
		return err
	}
	if s.kv, err = lab.StartKV(ctx, lab.KVConfig{Program: s.cfg.Binary}); err != nil {
		return err
	}
	if err := s.execute(ctx, primary, "postgres", "CREATE DATABASE "+database); err != nil {
		return err
	}
	if err := s.execute(ctx, primary, database, "CREATE TABLE orders (customer text, number int, PRIMARY KEY (customer, number))"); err != nil {
		return err
	}
	if s.leader, err = newBalancer(func() []string { return []string{s.primary.Load().Addr()} }); err != nil {
		return err
	}
	if out, err := s.run(ctx, "outbox", "migrate", "--db", shopDSN(s.leader.addr(), database)); err != nil {
		return fmt.Errorf("weir outbox migrate: %w\n%s", err, out)
	}
	if err := s.follow(ctx, 0); err != nil {
		return err
	}
	s.hosts = []string{primary.Addr(), s.standby.Load().Addr()}
	return s.startWeir(ctx)
}

// startWeir starts the processes between the shop and its servers.
func (s *stack) startWeir(ctx context.Context) error {
	ports, err := freePorts(6)
	if err != nil {
		return err
	}
	both := fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable&target_session_attrs=read-write", strings.Join(s.hosts, ","), database)
	var fronts []string
	for i := range 2 {
		fronts = append(fronts, ports[2*i])
		s.proxies = append(s.proxies, s.weir(fmt.Sprintf("proxy-%d", i+1), ports[2*i+1],
			"proxy", "--postgres", both, "--listen-postgres", ports[2*i], "--trust-loopback", "--pool-size", "10"))
		// If the relay followed the log, it could deliver a message before the standby has the
		// order.
		s.relays = append(s.relays, s.weir(fmt.Sprintf("relay-%d", i+1), ports[4+i],
			"outbox", "relay", "--db", shopDSN(s.leader.addr(), database), "--claim", "poll", "--status-every", "1s",
			"--sink", "nats://"+s.nats.Addr()+"?stream="+stream+"&create=true&subjects=orders"))
	}
	if s.front, err = newBalancer(func() []string { return fronts }); err != nil {
		return err
	}
	for _, p := range append(append([]*process(nil), s.proxies...), s.relays...) {
		if err := p.start(); err != nil {
			return err
		}
	}
	for _, p := range append(append([]*process(nil), s.proxies...), s.relays...) {
		if err := p.ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// follow starts a standby of the primary on a port, any port if that is 0, and makes commits
// wait for it, so that acknowledged data survives the primary.
func (s *stack) follow(ctx context.Context, port int) error {
	primary := s.primary.Load()
	standby, err := lab.StartStandby(ctx, primary, lab.PostgresConfig{Port: port})
	if err != nil {
		return err
	}
	for _, sql := range []string{"ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"} {
		if err := s.execute(ctx, primary, "postgres", sql); err != nil {
			return errors.Join(err, standby.Stop(context.WithoutCancel(ctx)))
		}
	}
	err = await(ctx, "commits wait for the standby", func() error {
		conn, err := connect(ctx, primary.DSN("postgres"))
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(ctx) }()
		var n int
		if err := conn.QueryRow(ctx, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'").Scan(&n); err != nil {
			return err
		}
		if n == 0 {
			return errors.New("it is not in sync")
		}
		return nil
	})
	if err != nil {
		return errors.Join(err, standby.Stop(context.WithoutCancel(ctx)))
	}
	s.standby.Store(standby)
	return nil
}

// execute runs a statement on a server.
func (s *stack) execute(ctx context.Context, at *lab.Postgres, db, sql string) error {
	conn, err := connect(ctx, at.DSN(db))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

// freePorts finds loopback addresses that nothing listens on.
func freePorts(n int) (addrs []string, err error) {
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer ln.Close() // close all at the end, so that they differ
		addrs = append(addrs, ln.Addr().String())
	}
	return addrs, nil
}

// stop stops everything.
func (s *stack) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for _, p := range append(append([]*process(nil), s.relays...), s.proxies...) {
		all.Go(func() { p.end(syscall.SIGTERM) })
	}
	all.Wait()
	for _, b := range []*balancer{s.front, s.leader} {
		if b != nil {
			b.close()
		}
	}
	end := func(name string, stop func(context.Context) error) {
		all.Go(func() {
			if err := stop(ctx); err != nil {
				slog.Warn("demo: "+name+" was not removed", "error", err)
			}
		})
	}
	if s.kv != nil {
		end("weir kv", s.kv.Stop)
	}
	if s.nats != nil {
		end("NATS", s.nats.Stop)
	}
	if p := s.standby.Load(); p != nil {
		end("the standby", p.Stop)
	}
	if p := s.primary.Load(); p != nil {
		end("PostgreSQL", p.Stop)
	}
	all.Wait()
}
