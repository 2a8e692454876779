//go:build linux

package proxycmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/admin/live"
	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/measure/check"
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/dash"
	"github.com/weirdb/weir/internal/proxy/handover"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
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
			p := &proxyProcess{cfg: cfg, loader: loader}
			return p.run(cmd.Context(), cmd.ErrOrStderr())
		},
	}
	loader.AddFlags(cmd)
	cmd.Flags().SortFlags = true // completion lists them by name
	cli.Examined(cmd, func(ctx context.Context) []check.Check { return examine(ctx, &cfg) })
	return cli.Checked(cmd)
}

// A proxySide is one protocol's side of a running proxy.
type proxySide struct {
	engine string // as in metrics
	title  string // for people
	server string // address of the database
	listen string // where clients connect, as the configuration has it
	auth   string
	srv    proxyServer
	heirs  handover.Side // the same
	// brief collects sums over all of its pools and lanes.
	brief func(ctx context.Context) (sight.Snapshot, error)
}

// proxyServer is what both sides have in common.
type proxyServer interface {
	sight.Source
	Addr() net.Addr
	Run(ctx context.Context) error
	Healthy(ctx context.Context) error
	End(how core.ShutdownMode)
	Options() *session.Options
}

// proxyProcess is a running `weir proxy`.
type proxyProcess struct {
	cfg    proxyConfig // as it was at the start
	loader *cli.Loader[proxyConfig]
	// stopping: the process ends, or begins to.
	stopping atomic.Bool

	reloading sync.Mutex
	delay     atomic.Int64 // --shutdown-delay, in ns
	level     slog.LevelVar
	log       *slog.Logger
	journal   *live.Journal // of log, for the live page
	audit     *sight.Audit  // nil without one
	tls       liveTLS
	sides     []proxySide
	before    *handover.Taker  // whose place it takes; nil without one
	taking    atomic.Bool      // ... and that has not ended
	pg        *postgres.Server // nil without that side
	my        *mysql.Server    // nil without that side
}

func (p *proxyProcess) run(ctx context.Context, stderr io.Writer) error {
	p.level.Set(p.cfg.logLevel)
	p.delay.Store(int64(p.cfg.shutdownDelay))
	p.journal = live.NewJournal(cli.NewLog(stderr, p.cfg.logFormat, &p.level).Handler(), live.Apart{Message: core.SlowStatement, Title: "Slow statements", Columns: core.SlowColumns})
	p.log = slog.New(p.journal)
	if p.cfg.pgDSN.visible {
		p.log.Warn("the password in --postgres can be read by every user of this machine; use PGPASSWORD, the password file, WEIR_POSTGRES or --config")
	}
	if p.cfg.myDSN.visible {
		p.log.Warn("the password in --mysql can be read by every user of this machine; use MYSQL_PWD, WEIR_MYSQL or --config")
	}
	if p.cfg.ldap.visible {
		p.log.Warn("the password in --ldap can be read by every user of this machine; use WEIR_LDAP or --config")
	}
	if err := p.findBefore(); err != nil {
		return err
	}
	if p.before != nil {
		defer p.before.Close()
	}
	adminLn, err := p.listenAdmin()
	if err != nil {
		return err
	}
	if adminLn != nil {
		defer adminLn.Close()
	}
	if err := p.openAudit(stderr); err != nil {
		return err
	}
	defer func() { _ = p.audit.Close() }() // each line is written when it is told
	if err := p.open(); err != nil {
		return err
	}
	next, err := p.take(adminLn)
	if err != nil {
		return errors.Join(err, p.abandon())
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	p.announce(adminLn)

	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	defer context.AfterFunc(ctx, func() { p.announceStop(serving, stopServing) })()
	g, gctx := errgroup.WithContext(serving)
	// The admin server outlives the proxy, so that a drain can be watched.
	adminCtx, stopAdmin := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error {
		defer stopAdmin()
		defer stopServing() // also where the console has ended the servers
		return p.serve(gctx)
	})
	if adminLn != nil {
		page := dash.New(dash.Config{Source: proxySource{p.sides, &p.stopping}, Metrics: proxyMetrics(p.sides), Several: p.cfg.several(), Journal: p.journal, Log: p.log})
		g.Go(func() error { return page.Run(adminCtx, adminLn) })
	}
	for _, s := range p.sides {
		g.Go(func() error { p.probe(gctx, s); return nil })
	}
	if next != nil {
		g.Go(func() error { return next.Run(adminCtx) })
	}
	if p.before != nil {
		g.Go(func() error { return p.takeIn(gctx) })
	}
	g.Go(func() error {
		for {
			select {
			case <-hup:
				_ = p.Reload() // which has logged why not
			case <-gctx.Done():
				return nil
			}
		}
	})
	if err := g.Wait(); err != nil {
		return err
	}
	p.log.Info("weir proxy has stopped")
	return nil
}

// announceStop has /readyz say no for a while, and then has the servers stop.
func (p *proxyProcess) announceStop(serving context.Context, stopServing func()) {
	defer stopServing()
	p.stopping.Store(true)
	if delay := time.Duration(p.delay.Load()); delay > 0 {
		p.log.Info("weir proxy is about to stop: not ready for new clients", "delay", delay.String())
		select {
		case <-time.After(delay):
		case <-serving.Done():
		}
	}
	p.log.Info("weir proxy stops: no new clients, transactions may end")
}

// End implements core.Process.
func (p *proxyProcess) End(how core.ShutdownMode) {
	p.stopping.Store(true)
	for _, s := range p.sides {
		s.srv.End(how)
	}
}

// openAudit opens --audit-log.
func (p *proxyProcess) openAudit(stderr io.Writer) (err error) {
	switch path := p.cfg.audit; path {
	case "", "off":
	case "stderr":
		p.audit = sight.NewAudit(stderr, p.log)
	default:
		if p.audit, err = sight.OpenAudit(path, p.log); err != nil {
			return fmt.Errorf("--audit-log: %w", err)
		}
	}
	return nil
}

// open starts to listen for the clients of each side.
func (p *proxyProcess) open() (err error) {
	cert := p.tls.follow(p.cfg.pg.ClientTLS) // both sides have the same
	if p.cfg.pgDSN.wanted {
		c := p.cfg.pg
		c.Log, c.ClientTLS, c.Process, c.Audit = p.log, cert, p, p.audit
		c.Sockets = p.inherited(postgres.Engine, c.Listen)
		if p.pg, err = postgres.New(c); err != nil {
			return err
		}
		p.sides = append(p.sides, proxySide{postgres.Engine, "PostgreSQL", c.Postgres.Address, c.Listen, c.Auth, p.pg, postgres.Heritage(p.pg), briefOf(&p.pg.Server)})
	}
	if p.cfg.myDSN.wanted {
		c := p.cfg.my
		c.Log, c.ClientTLS, c.Process, c.Audit = p.log, cert, p, p.audit
		c.Sockets = p.inherited(mysql.Engine, c.Listen)
		if p.my, err = mysql.New(c); err != nil {
			return errors.Join(err, p.abandon())
		}
		p.sides = append(p.sides, proxySide{mysql.Engine, "MySQL", c.MySQL.Address, c.Listen, c.Auth, p.my, mysql.Heritage(p.my), briefOf(&p.my.Server)})
	}
	return nil
}

// abandon ends sides that listen and have not served.
func (p *proxyProcess) abandon() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return p.serve(ctx)
}

// serve runs every side until ctx ends or one fails.
func (p *proxyProcess) serve(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, s := range p.sides {
		g.Go(func() error { return s.srv.Run(ctx) })
	}
	return g.Wait()
}

func (p *proxyProcess) announce(admin *netloop.Pausable) {
	c := &p.cfg.shared
	for _, s := range p.sides {
		attrs := []any{
			"engine", s.engine, "address", s.srv.Addr().String(), "server", s.server, "mode", string(c.Mode),
			"pool_size", c.SizeOfPool(), "auth", s.auth, "version", sight.Version,
		}
		if admin != nil {
			attrs = append(attrs, "admin", "http://"+admin.Addr().String()+"/")
		}
		p.log.Info("weir proxy listens", attrs...)
	}
	if files, ok := netloop.MaxFiles(); ok && files < c.WithDefaults().MaxClients {
		p.log.Warn("--max-clients is more than the limit on open files has room for: clients beyond that wait to be accepted",
			"max_clients", c.WithDefaults().MaxClients, "open_files", files, "hint", "raise LimitNOFILE (ulimit -n), or lower --max-clients")
	}
}

// probePatience bounds the first look at the server.
const probePatience = 10 * time.Second

// probe says early what clients would find out: that the server is not there.
func (p *proxyProcess) probe(ctx context.Context, s proxySide) {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	if err := s.srv.Healthy(ctx); err != nil && ctx.Err() == nil {
		p.log.Warn("the "+s.title+" server does not answer; clients will wait, then be told", "server", s.server, "error", err)
	}
}

// Reload reads the configuration again and applies what can change while the proxy
// serves. A mistake in it changes nothing. It implements core.Process.
func (p *proxyProcess) Reload() error {
	p.reloading.Lock()
	defer p.reloading.Unlock()
	err := p.reload()
	if err != nil {
		p.log.Error("reload refused, everything stays as it was", "error", err)
	}
	return err
}

// renews reports whether an option names the same servers as at the start, with another
// password or other certificates at most: those are applied.
func (p *proxyProcess) renews(option string, now *proxyConfig) (same bool) {
	was := &p.cfg
	switch option {
	case "postgres":
		_, _, same = was.pg.Renewed(&now.pg)
	case "mysql":
		_, _, same = was.my.Renewed(&now.my)
	}
	return same
}

func (p *proxyProcess) reload() error {
	now, err := loadProxy(p.loader)
	if err != nil {
		return err
	}
	var later []string
	for i := range p.loader.Options {
		if o := &p.loader.Options[i]; !o.Reload && now.found[o.Name].Text != p.cfg.found[o.Name].Text && !p.renews(o.Name, &now) {
			later = append(later, o.Key())
		}
	}
	cert := now.pg.ClientTLS // both sides have the same
	if (cert == nil) != (p.cfg.pg.ClientTLS == nil) {
		later = append(later, "client_tls_cert")
		cert = nil
		now.pg.ClientTLSMode, now.my.ClientTLSMode = p.cfg.pg.ClientTLSMode, p.cfg.my.ClientTLSMode
	}
	users := 0
	if p.pg != nil && now.pgDSN.wanted {
		if err := p.pg.Reload(now.pg); err != nil {
			return err
		}
		users += len(now.pg.Users)
	}
	if p.my != nil && now.myDSN.wanted {
		if err := p.my.Reload(now.my); err != nil {
			return err
		}
		users += len(now.my.Users)
	}
	if cert != nil {
		p.tls.now.Store(cert)
	}
	if err := p.audit.Reopen(); err != nil {
		p.log.Error("audit log stays where it was", "error", err)
	}
	p.level.Set(now.logLevel)
	p.delay.Store(int64(now.shutdownDelay))
	p.log.Info("configuration reloaded", "users", users, "log_level", now.logLevel.String())
	if len(later) > 0 {
		slices.Sort(later)
		p.log.Warn("changes that need a restart were not applied", "keys", strings.Join(later, " "))
	}
	return nil
}
