package kvcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/admin"
	"github.com/weirdb/weir/internal/admin/live"
	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/kvd/replica"
	"github.com/weirdb/weir/internal/version"
)

func newKVServe() *cobra.Command {
	loader := kvLoader()
	var cfg kvConfig
	cmd := &cobra.Command{
		Use:   "serve --id N --peers LIST --data DIR",
		Short: "Run a replica until stopped",
		Long: `Run one replica of a cluster. The first start of all of --peers creates the cluster;
from then on the log records the members. Replicas and native clients connect to a
replica's address in --peers, Redis clients to that of --resp. Any replica will do: a
follower forwards what the leader must decide.

A write is acknowledged when it is on the disks of a majority. A disk error stops the
replica. So does a disk that lacks acknowledged data, such as an older copy: replace
that member (weir kv member replace).

SIGTERM and SIGINT hand over leadership, let requests finish and exit with 0; a second
signal exits at once, and loses nothing that was acknowledged.`,
		Example: `  weir kv serve --id 1 --peers 1=127.0.0.1:7401 --data /var/lib/weir --resp 127.0.0.1:6379
  weir kv serve --id 2 --peers 1=10.0.0.1:7401/6379,2=10.0.0.2:7401/6379,3=10.0.0.3:7401/6379 \
      --data /var/lib/weir --secret-file /etc/weir/secret --resp-password-file /etc/weir/redis
  weir kv serve -c /etc/weir/kv.yaml
  redis-cli -p 6379 SET greeting hello`,
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) (err error) {
			cfg, err = loadKV(loader)
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			p := &kvProcess{cfg: cfg}
			return p.run(cmd.Context(), cmd.ErrOrStderr())
		},
	}
	loader.AddFlags(cmd)
	return cli.Checked(cmd)
}

// kvProcess is a running `weir kv serve`.
type kvProcess struct {
	cfg     kvConfig
	log     *slog.Logger
	journal *live.Journal // of log, for the live page
	replica *replica.Replica
}

func (p *kvProcess) run(ctx context.Context, stderr io.Writer) (err error) {
	p.journal = live.NewJournal(p.cfg.log(stderr).Handler())
	p.log = slog.New(p.journal)
	var ln net.Listener
	if p.cfg.admin != "" {
		if ln, err = net.Listen("tcp", p.cfg.admin); err != nil {
			return fmt.Errorf("listen for --admin: %w (give each replica of a machine an address of its own, or --admin off)", err)
		}
		defer ln.Close()
	}
	c := p.cfg.replica
	c.Log, c.Version = p.log, version.Current().Version
	if p.replica, err = replica.Open(c); err != nil {
		return err
	}
	p.announce(ln)
	g, around := errgroup.WithContext(ctx)
	// The admin server outlives the replica's context, so that a shutdown can be observed.
	watched, stop := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error {
		defer stop()
		return p.replica.Run(around)
	})
	if ln != nil {
		g.Go(func() error {
			return p.replica.Serve(watched, ln, admin.Registry(p.replica.Collector()), p.journal, p.log)
		})
	}
	stopped := context.AfterFunc(ctx, func() {
		p.log.Info("weir kv serve stops: leadership is handed over, requests may end")
	})
	defer stopped()
	if err := g.Wait(); err != nil {
		var disk *replica.DiskError
		if errors.As(err, &disk) {
			p.log.Error("the disk failed", "error", err)
		}
		return err
	}
	p.log.Info("weir kv serve has stopped")
	return nil
}

func (p *kvProcess) announce(admin net.Listener) {
	c := &p.cfg.replica
	attrs := []any{
		"cluster", c.Cluster, "address", p.replica.Addr(), "preset", c.Preset, "durability", p.cfg.durability,
		"version", version.Current().Version,
	}
	if redis := p.replica.RedisAddr(); redis != "" {
		attrs = append(attrs, "redis", redis)
	}
	if c.Dir != "" {
		attrs = append(attrs, "data", c.Dir)
	}
	if admin != nil {
		attrs = append(attrs, "admin", "http://"+admin.Addr().String()+"/")
	}
	p.log.Info("weir kv serve starts", attrs...)
	if len(p.replica.Status().Members) == 0 {
		p.log.Info("this replica waits to be added to the cluster (weir kv member add)")
	}
	if p.cfg.durability == "memory" {
		p.log.Warn("durability memory: nothing is written; a replica that stops has lost everything, and must come back as a new member")
	}
}
