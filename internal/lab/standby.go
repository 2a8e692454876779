package lab

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"syscall"
)

// StartStandby starts a hot standby of a running server: a copy made by pg_basebackup, which
// follows the primary by streaming replication and answers reads. cfg is the standby's own;
// BinDir, Auth, Password and MaxConnections are the primary's. Primaries that require client
// certificates are not supported.
func StartStandby(ctx context.Context, primary *Postgres, cfg PostgresConfig) (*Postgres, error) {
	cfg.BinDir, cfg.Auth, cfg.Password, cfg.MaxConnections = primary.bin.dir, primary.cfg.Auth, primary.cfg.Password, primary.cfg.MaxConnections
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure PostgreSQL standby: %w", err)
	}
	if primary.cfg.TLS == TLSMutual {
		return nil, errors.New("configure PostgreSQL standby: primaries that ask for client certificates are not supported")
	}
	if !isFile(primary.bin.path("pg_basebackup")) {
		return nil, fmt.Errorf("configure PostgreSQL standby: %s has no pg_basebackup", primary.bin.dir)
	}
	p := &Postgres{cfg: cfg.withDefaults(primary.bin), bin: primary.bin}
	p.server = server{
		title: "PostgreSQL standby", stopSignal: syscall.SIGINT, crashSignal: syscall.SIGQUIT, portInUse: "could not bind",
		port: cfg.Port, anyPort: cfg.Port == 0, watch: cfg.watch(), logCopy: cfg.Log,
		as: primary.as, env: p.cfg.environment(), launch: p.start,
	}
	prepare := func(ctx context.Context) error {
		if err := p.prepareRunDir(ctx, p.cfg.TLS, superuser); err != nil {
			return err
		}
		// -R writes standby.signal, and the connection to the primary in postgresql.auto.conf.
		_, err := runCommand(ctx, command{
			path: p.bin.path("pg_basebackup"), dir: filepath.Dir(p.data), as: p.as,
			args: []string{"-D", p.data, "-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", primary.local()},
		})
		if err != nil {
			return fmt.Errorf("copy the primary: %w", err)
		}
		return p.writeHBA()
	}
	if err := p.begin(ctx, p.cfg.Durability, prepare); err != nil {
		return nil, err
	}
	return p, nil
}

// local is the URL of the server's Unix socket.
func (p *Postgres) local() string {
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Path: "/postgres"}
	if p.cfg.Password != "" {
		u.User = url.UserPassword(superuser, p.cfg.Password)
	}
	u.RawQuery = url.Values{"host": {p.sock}, "port": {strconv.Itoa(p.port)}}.Encode()
	return u.String()
}
