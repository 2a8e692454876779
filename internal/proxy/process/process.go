package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/admin/live"
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/dash"
	"github.com/weirdb/weir/internal/proxy/handover"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// A side is one protocol's side of a running proxy.
type side struct {
	engine string // as in metrics
	title  string // for people
	server string // address of the database
	listen string // where clients connect, as the configuration has it
	auth   string
	srv    server
	heirs  handover.Side // the same
	// brief collects sums over all of its pools and lanes.
	brief func(ctx context.Context) (sight.Snapshot, error)
}

// server is what both sides have in common.
type server interface {
	sight.Source
	Addr() net.Addr
	Run(ctx context.Context) error
	Healthy(ctx context.Context) error
	End(how core.ShutdownMode)
	Options() *session.Options
}

// process is a running proxy.
type process struct {
	cfg Config // as it was at the start
	env Environment
	// stopping: the process ends, or begins to.
	stopping atomic.Bool

	reloading sync.Mutex
	delay     atomic.Int64 // Config.ShutdownDelay, in ns
	level     slog.LevelVar
	log       *slog.Logger
	journal   *live.Journal // of log, for the live page
	audit     *sight.Audit  // nil without one
	cert      certificate
	sides     []side
	before    *handover.Taker  // whose place it takes; nil without one
	taking    atomic.Bool      // ... and that has not ended
	pg        *postgres.Server // nil without that side
	my        *mysql.Server    // nil without that side
}

// Run serves until ctx ends, a side fails or the console ends the process. SIGHUP makes it
// read its configuration again.
func Run(ctx context.Context, cfg Config, env Environment) error {
	p := &process{cfg: cfg, env: env}
	return p.run(ctx)
}

func (p *process) run(ctx context.Context) error {
	p.level.Set(p.cfg.LogLevel)
	p.delay.Store(int64(p.cfg.ShutdownDelay))
	p.journal = live.NewJournal(p.env.Log(&p.level), live.Apart{Message: core.SlowStatement, Title: "Slow statements", Columns: core.SlowColumns})
	p.log = slog.New(p.journal)
	for _, warning := range p.cfg.Warnings {
		p.log.Warn(warning)
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
	if err := p.openAudit(); err != nil {
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
		page := dash.New(dash.Config{Source: pageSource{p.sides, &p.stopping}, Metrics: metrics(p.sides), Several: p.cfg.several(), Journal: p.journal, Log: p.log})
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
func (p *process) announceStop(serving context.Context, stopServing func()) {
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
func (p *process) End(how core.ShutdownMode) {
	p.stopping.Store(true)
	for _, s := range p.sides {
		s.srv.End(how)
	}
}

// openAudit opens the audit log.
func (p *process) openAudit() (err error) {
	switch path := p.cfg.AuditLog; path {
	case "", "off":
	case "stderr":
		p.audit = sight.NewAudit(p.env.Stderr, p.log)
	default:
		if p.audit, err = sight.OpenAudit(path, p.log); err != nil {
			return fmt.Errorf("--audit-log: %w", err)
		}
	}
	return nil
}

// open starts to listen for the clients of each side.
func (p *process) open() (err error) {
	cert := p.cert.follow(p.cfg.clientTLS())
	if p.cfg.Postgres != nil {
		c := *p.cfg.Postgres
		c.Log, c.ClientTLS, c.Process, c.Audit = p.log, cert, p, p.audit
		c.Sockets = p.inherited(postgres.Engine, c.Listen)
		if p.pg, err = postgres.New(c); err != nil {
			return err
		}
		p.sides = append(p.sides, side{postgres.Engine, "PostgreSQL", c.Postgres.Address, c.Listen, c.Auth, p.pg, postgres.Heritage(p.pg), briefOf(&p.pg.Server)})
	}
	if p.cfg.MySQL != nil {
		c := *p.cfg.MySQL
		c.Log, c.ClientTLS, c.Process, c.Audit = p.log, cert, p, p.audit
		c.Sockets = p.inherited(mysql.Engine, c.Listen)
		if p.my, err = mysql.New(c); err != nil {
			return errors.Join(err, p.abandon())
		}
		p.sides = append(p.sides, side{mysql.Engine, "MySQL", c.MySQL.Address, c.Listen, c.Auth, p.my, mysql.Heritage(p.my), briefOf(&p.my.Server)})
	}
	return nil
}

// abandon ends sides that listen and have not served.
func (p *process) abandon() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return p.serve(ctx)
}

// serve runs every side until ctx ends or one fails.
func (p *process) serve(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, s := range p.sides {
		g.Go(func() error { return s.srv.Run(ctx) })
	}
	return g.Wait()
}

func (p *process) announce(admin *netloop.Pausable) {
	c := p.cfg.options()
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
func (p *process) probe(ctx context.Context, s side) {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	if err := s.srv.Healthy(ctx); err != nil && ctx.Err() == nil {
		p.log.Warn("the "+s.title+" server does not answer; clients will wait, then be told", "server", s.server, "error", err)
	}
}
