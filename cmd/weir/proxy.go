package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/dash"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/sight"
)

func newProxyCommand() *cobra.Command {
	options := proxyOptions()
	src := sources{flags: map[string]string{}, getenv: os.Getenv}
	var cfg proxyConfig
	cmd := &cobra.Command{
		Use:   "proxy --postgres DSN",
		Short: "PostgreSQL proxy: shares connections, pipelines reads, groups writes",
		Long: `Stand between PostgreSQL clients and their server. Clients share few server
connections, reads of many clients cross the wire together, and writes that ask
for it (/* batch */ in front) share transactions and flushes of the log.

Every option can also be set in the environment (--pool-size as WEIR_POOL_SIZE)
or in a YAML file (pool_size). A flag wins over the environment, that over the
file. No password needs to be on the command line: PGPASSWORD, the password file
(~/.pgpass), WEIR_POSTGRES and the YAML file hold it as well.

SIGTERM and SIGINT stop taking clients, let transactions end and exit with 0; a
second one exits at once. SIGHUP reads the configuration again and applies
--auth-file, the certificates and --log-level; all else needs a restart.`,
		Example: `  weir proxy --postgres postgres://app@db.example.com:5432/shop
  PGPASSWORD=... weir proxy --postgres 'host=/run/postgresql user=weir' --auth-query \
      'SELECT usename, passwd FROM pg_shadow WHERE usename = $1' --auth scram-sha-256
  weir proxy -c /etc/weir/weir.yaml --log-level debug
  psql -h 127.0.0.1 -p 6432 weir -c 'SHOW POOLS'       # the admin console`,
		Args: cobra.NoArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) (err error) {
			src.file = cmp.Or(src.file, src.getenv("WEIR_CONFIG"))
			cfg, err = src.load(options)
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			p := &proxyProcess{cfg: cfg, src: src, options: options}
			return p.run(cmd.Context(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	for i := range options {
		o := &options[i]
		flag := f.VarPF(&textFlag{o: o, into: src.flags}, o.name, "", o.help)
		flag.DefValue = o.def
		if o.arg == "" {
			flag.NoOptDefVal = "true"
		}
		if o.arg == argFile {
			_ = cmd.MarkFlagFilename(o.name) // for completion; the flag exists
		}
	}
	f.StringVarP(&src.file, "config", "c", "", "YAML file with any of these options; WEIR_CONFIG names one too")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml")
	cmd.SetUsageFunc(func(cmd *cobra.Command) error { return proxyUsage(cmd, options) })
	return cmd
}

// textFlag records the text of a flag, which option.set reads later: only then
// is it known which of several sources counts.
type textFlag struct {
	o    *option
	into map[string]string
}

func (f *textFlag) Set(v string) error { f.into[f.o.name] = v; return nil }
func (f *textFlag) String() string     { return f.into[f.o.name] }
func (f *textFlag) Type() string       { return "" }

// proxyUsage prints the flags in the groups of the options.
func proxyUsage(cmd *cobra.Command, options []option) error {
	w := cmd.OutOrStderr()
	fmt.Fprintf(w, "Usage:\n  %s\n\nExamples:\n%s\n", cmd.UseLine(), cmd.Example)
	args := map[string]string{"config": argFile}
	for i := range options {
		args[options[i].name] = options[i].arg
	}
	for _, group := range proxyGroups {
		set := pflag.NewFlagSet(group, pflag.ContinueOnError)
		set.SortFlags = false
		for i := range options {
			if options[i].group == group {
				set.AddFlag(cmd.Flags().Lookup(options[i].name))
			}
		}
		if group == groupOps {
			set.AddFlag(cmd.Flags().Lookup("config"))
			if help := cmd.Flags().Lookup("help"); help != nil {
				set.AddFlag(help)
			}
		}
		fmt.Fprintf(w, "\n%s:\n%s", group, flagTable(set, args))
	}
	return nil
}

// flagTable renders flags and their arguments with the help beside them, wrapped
// to 96 columns.
func flagTable(set *pflag.FlagSet, args map[string]string) string {
	const margin, width = 38, 58
	var b strings.Builder
	set.VisitAll(func(f *pflag.Flag) {
		name := "      --" + f.Name
		if f.Shorthand != "" {
			name = "  -" + f.Shorthand + ", --" + f.Name
		}
		if arg := args[f.Name]; arg != "" {
			name += " " + arg
		}
		help := f.Usage
		if f.DefValue != "" && f.DefValue != "false" {
			help += " (default " + f.DefValue + ")"
		}
		b.WriteString(name)
		column := len(name)
		if column+2 > margin {
			b.WriteString("\n")
			column = 0
		}
		b.WriteString(strings.Repeat(" ", margin-column))
		used := 0
		for _, word := range strings.Fields(help) {
			if used > 0 && used+1+len(word) > width {
				b.WriteString("\n" + strings.Repeat(" ", margin))
				used = 0
			} else if used > 0 {
				b.WriteByte(' ')
				used++
			}
			b.WriteString(word)
			used += len(word)
		}
		b.WriteByte('\n')
	})
	return b.String()
}

// proxyProcess is a running `weir proxy`.
type proxyProcess struct {
	cfg     proxyConfig
	src     sources
	options []option

	level slog.LevelVar
	log   *slog.Logger
	tls   liveTLS
	srv   *postgres.Server
}

func (p *proxyProcess) run(ctx context.Context, stderr io.Writer) error {
	p.level.Set(p.cfg.logLevel)
	p.log = newLog(stderr, p.cfg.logFormat, &p.level)
	if p.cfg.visiblePassword {
		p.log.Warn("the password in --postgres can be read by every user of this machine; use PGPASSWORD, the password file, WEIR_POSTGRES or --config")
	}
	var adminLn net.Listener
	if p.cfg.admin != "" {
		var err error
		if adminLn, err = net.Listen("tcp", p.cfg.admin); err != nil {
			return fmt.Errorf("listen for --admin: %w", err)
		}
		defer adminLn.Close()
	}
	c := p.cfg.proxy
	c.Log = p.log
	c.ClientTLS = p.tls.follow(c.ClientTLS)
	var err error
	if p.srv, err = postgres.New(c); err != nil {
		return err
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	p.announce(adminLn)

	g, gctx := errgroup.WithContext(ctx)
	// The admin server outlives the proxy, so that a drain can be watched.
	adminCtx, stopAdmin := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error {
		defer stopAdmin()
		return p.srv.Run(gctx)
	})
	if adminLn != nil {
		page := dash.New(dash.Config{
			Source:  &proxySource{srv: p.srv, server: c.Postgres.Address, listen: p.srv.Addr().String()},
			Metrics: proxyMetrics(p.srv), Log: p.log,
		})
		g.Go(func() error { return page.Run(adminCtx, adminLn) })
	}
	g.Go(func() error { p.probe(gctx); return nil })
	g.Go(func() error {
		for {
			select {
			case <-hup:
				p.reload()
			case <-gctx.Done():
				return nil
			}
		}
	})
	stopped := context.AfterFunc(ctx, func() {
		p.log.Info("weir proxy stops: no new clients, transactions may end", "patience", p.cfg.proxy.DrainTimeout.String())
	})
	defer stopped()
	if err := g.Wait(); err != nil {
		return err
	}
	p.log.Info("weir proxy has stopped")
	return nil
}

func (p *proxyProcess) announce(admin net.Listener) {
	c := &p.cfg.proxy
	attrs := []any{
		"address", p.srv.Addr().String(), "server", c.Postgres.Address, "mode", string(c.Mode),
		"pool_size", c.PoolSize, "auth", c.Auth, "version", sight.Version,
	}
	if admin != nil {
		attrs = append(attrs, "admin", "http://"+admin.Addr().String()+"/")
	}
	p.log.Info("weir proxy listens", attrs...)
}

// probePatience bounds the first look at the server.
const probePatience = 10 * time.Second

// probe says early what clients would find out: that the server is not there.
func (p *proxyProcess) probe(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	if err := p.srv.Healthy(ctx); err != nil && ctx.Err() == nil {
		p.log.Warn("the PostgreSQL server does not answer; clients will wait, then be told", "error", err)
	}
}

// reload reads the configuration again and applies what can change while the
// proxy serves. A mistake in it changes nothing.
func (p *proxyProcess) reload() {
	now, err := p.src.load(p.options)
	if err != nil {
		p.log.Error("reload refused, everything stays as it was", "error", err)
		return
	}
	var later []string
	for i := range p.options {
		if o := &p.options[i]; !o.reload && now.texts[o.name] != p.cfg.texts[o.name] {
			later = append(later, o.key())
		}
	}
	if (now.proxy.ClientTLS == nil) != (p.cfg.proxy.ClientTLS == nil) {
		later = append(later, "client_tls_cert")
	} else if now.proxy.ClientTLS != nil {
		p.tls.now.Store(now.proxy.ClientTLS)
	}
	p.srv.SetUsers(now.proxy.Users)
	p.level.Set(now.logLevel)
	p.log.Info("configuration reloaded", "users", len(now.proxy.Users), "log_level", now.logLevel.String())
	if len(later) > 0 {
		slices.Sort(later)
		p.log.Warn("changes that need a restart were not applied", "keys", strings.Join(later, " "))
	}
}
