package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file decides which of several hosts weir connects to.

// Hosts implements core.Side.
func (s *Server) Hosts() upstream.Config {
	cfg := s.cfg()
	u := upstream.Config{Target: cfg.Target, Patroni: cfg.Patroni, Probe: s.probe, OnHosts: s.roles.Only}
	for _, h := range cfg.Hosts {
		u.Hosts = append(u.Hosts, h.Address)
	}
	return u
}

// hosts are the hosts of a server, one of which gets the connections.
type hosts struct {
	srv   *Server
	roles *upstream.Kept[*pgwire.Backend] // connections on which they are asked for their role

	pooled pooledVerdicts
}

// connect logs in to the current host.
func (h *hosts) connect(ctx context.Context, cfg pgwire.ConnectConfig) (*pgwire.Backend, upstream.Endpoint, error) {
	s := h.srv
	cfg, e, err := s.toHost(ctx, cfg)
	if err != nil {
		return nil, e, err
	}
	ctx, cancel := s.Monitor.While(ctx, e)
	defer cancel()
	var be *pgwire.Backend
	err = s.withRoom(ctx, poolKey{database: cfg.Database, user: cfg.User}, func() (err error) {
		be, err = pgwire.Connect(ctx, cfg)
		return err
	})
	if err != nil {
		s.suspect(err)
		return nil, e, err
	}
	if err := s.checkRole(be, e); err != nil {
		_ = be.Conn.Close()
		return nil, e, err
	}
	if err := h.pooled.check(ctx, s, cfg, be, e); err != nil {
		_ = be.Conn.Close()
		return nil, e, err
	}
	return be, e, nil
}

// toHost adapts a configuration to the current host.
func (h *hosts) toHost(ctx context.Context, cfg pgwire.ConnectConfig) (pgwire.ConnectConfig, upstream.Endpoint, error) {
	s := h.srv
	e, err := s.Monitor.Current(ctx)
	if err != nil {
		return cfg, e, err
	}
	return s.at(cfg, e), e, nil
}

// at adapts a configuration to an endpoint. A host that only Patroni
// names is reached with the parameters of the first host, but by its own name.
func (h *hosts) at(cfg pgwire.ConnectConfig, e upstream.Endpoint) pgwire.ConnectConfig {
	s := h.srv
	if s.Monitor.Static() {
		return cfg
	}
	known := false
	for _, h := range s.cfg().Hosts {
		if h.Address == e.Host {
			cfg.Network, cfg.Address, cfg.TLSMode, cfg.TLSConfig = h.Network, h.Address, h.TLSMode, h.TLSConfig
			known = true
			break
		}
	}
	if !known {
		cfg.Network, cfg.Address = "", e.Host
		if cfg.TLSConfig != nil {
			cfg.TLSConfig = cfg.TLSConfig.Clone()
			cfg.TLSConfig.ServerName, _, _ = net.SplitHostPort(e.Host)
		}
	}
	if dial := cfg.Dial; e.Address != e.Host {
		cfg.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dial(ctx, network, e.Address)
		}
	}
	return cfg
}

// suspect requests a look at the hosts after one of them could not be connected to, unless it
// only refused the user.
func (h *hosts) suspect(err error) {
	if !refuses(err) {
		h.srv.Monitor.Suspect()
	}
}

// errRole is why a connection cannot be used: the host's role has changed since it
// was last asked.
var errRole = errors.New("the host does not serve as what is wanted any more")

// checkRole refuses a new connection to a standby if a primary is
// wanted, or the other way round. Servers before 14 do not report their role.
func (h *hosts) checkRole(be *pgwire.Backend, e upstream.Endpoint) error {
	s := h.srv
	role := upstream.RoleUnknown
	switch be.Param("in_hot_standby") {
	case "on":
		role = upstream.RoleStandby
	case "off":
		role = upstream.RolePrimary
	}
	if s.Monitor.Serves(role) {
		return nil
	}
	s.Monitor.Suspect()
	return fmt.Errorf("connect to %s, a %s: %w: %w", e.Host, role, errRole, upstream.ErrNoHost)
}

// Moved implements core.Pool.
func (p *pool) Moved(now upstream.Endpoint) {
	p.l.srv.lookups.recent.forget()
	p.forgetGreetings()
	p.facts.known = false
	p.Leave(now)
	p.catalogue.moved()
	for _, h := range slices.Clone(p.listeners.hubs) {
		h.moved(now)
	}
}

// roleSQL asks whether the server takes writes, for the timeline of one that does,
// which each promotion raises, and for the position of its log, written or applied.
var roleSQL = own(`SELECT pg_catalog.pg_is_in_recovery() OR pg_catalog.current_setting('default_transaction_read_only') = 'on',
 CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8) END,
 pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END, '0/0')`)

// probe asks a host for its role, as the DSN's user.
func (h *hosts) probe(ctx context.Context, e upstream.Endpoint) (upstream.Report, error) {
	s := h.srv
	if s.cfg().Target == upstream.TargetAny {
		return upstream.Report{}, answers(ctx, s.at(s.cfg().Postgres, e))
	}
	if be, ok := s.roles.Take(e); ok {
		r, err := s.askRole(ctx, e, be)
		if err == nil || ctx.Err() != nil {
			return r, err
		}
		// The connection was lost while it was idle.
	}
	cfg := s.at(s.cfg().Postgres, e)
	if cfg.Password == "" {
		cfg.Password, cfg.Keys = s.creds.of(cfg.User)
	}
	be, err := pgwire.Connect(ctx, cfg)
	if err != nil {
		return upstream.Report{}, err
	}
	return s.askRole(ctx, e, be)
}

// askRole asks on a connection, and then keeps or closes it.
func (h *hosts) askRole(ctx context.Context, e upstream.Endpoint, be *pgwire.Backend) (upstream.Report, error) {
	row, err := queryOne(ctx, be.Conn, roleSQL)
	if err == nil && len(row) != 3 {
		err = errors.New("no answer to the question for its role")
	}
	if err != nil {
		_ = be.Conn.Close()
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return upstream.Report{}, err
	}
	h.srv.roles.Put(e, be)
	r := upstream.Report{Role: upstream.RoleStandby}
	r.Position, _ = strconv.ParseUint(string(row[2]), 10, 64) // NULL: it has applied nothing yet
	if string(row[0]) == "f" {
		r.Role = upstream.RolePrimary
		// The timeline is a hexadecimal number; without it, two primaries cannot be ranked.
		r.Term, _ = strconv.ParseUint(string(row[1]), 16, 32)
	}
	return r, nil
}
