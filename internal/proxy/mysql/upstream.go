package mysql

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file chooses among several hosts.

// Hosts implements core.Side.
func (s *Server) Hosts() upstream.Config {
	cfg := s.cfg()
	u := upstream.Config{Target: cfg.Target, Probe: s.probe, OnHosts: s.roles.Only}
	for _, h := range cfg.Hosts {
		u.Hosts = append(u.Hosts, h.Address)
	}
	return u
}

// hosts are the hosts of a server; one of them takes the connections.
type hosts struct {
	srv   *Server
	roles *upstream.Kept[*mywire.Server] // connections on which their roles are queried
}

// toHost returns a configuration for the host that connections go to.
func (h *hosts) toHost(ctx context.Context, cfg mywire.ConnectConfig) (mywire.ConnectConfig, upstream.Endpoint, error) {
	s := h.srv
	e, err := s.Monitor.Current(ctx)
	if err != nil {
		return cfg, e, err
	}
	return s.at(cfg, e), e, nil
}

// at returns a configuration for an endpoint.
func (h *hosts) at(cfg mywire.ConnectConfig, e upstream.Endpoint) mywire.ConnectConfig {
	s := h.srv
	if s.Monitor.Static() {
		return cfg
	}
	for _, h := range s.cfg().Hosts {
		if h.Address == e.Host {
			cfg.Network, cfg.Address, cfg.TLSMode, cfg.TLSConfig = h.Network, h.Address, h.TLSMode, h.TLSConfig
			break
		}
	}
	if dial := cfg.Dial; e.Address != e.Host {
		cfg.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dial(ctx, network, e.Address)
		}
	}
	return cfg
}

// suspect has the hosts checked after a connection to one of them failed for another reason
// than a refused user.
func (h *hosts) suspect(err error) {
	if !refusesUser(mywire.CodeOf(err)) {
		h.srv.Monitor.Suspect()
	}
}

// Moved implements core.Pool.
func (p *pool) Moved(now upstream.Endpoint) {
	p.l.srv.known.welcomes.forget(p.l.srv.Monotonic())
	p.l.srv.known.accounts.Forget()
	p.facts.known, p.facts.text = false, "" // another server may be of another kind
	p.catalogue.known = false               // another server has counters of its own
	p.Leave(now)
}

// Queries of whether the server takes writes, and of its transactions, if these have numbers.
// super_read_only, where it exists, implies read_only.
const (
	roleSQL          = "SELECT @@GLOBAL.read_only, ''"
	roleOfMySQLSQL   = "SELECT @@GLOBAL.read_only, @@GLOBAL.gtid_executed"
	roleOfMariaDBSQL = "SELECT @@GLOBAL.read_only, @@GLOBAL.gtid_current_pos"
)

// probe queries the role of a host, as the DSN's user.
func (h *hosts) probe(ctx context.Context, e upstream.Endpoint) (upstream.Report, error) {
	s := h.srv
	if conn, ok := s.roles.Take(e); ok {
		r, err := s.askRole(ctx, e, conn)
		if err == nil || ctx.Err() != nil {
			return r, err
		}
		// The connection was lost while it was idle.
	}
	cfg := s.at(s.cfg().MySQL, e)
	if cfg.Password == "" {
		cfg.Keys = s.creds.Keys(cfg.User)
	}
	conn, err := mywire.Connect(ctx, cfg)
	switch {
	case err == nil:
		return s.askRole(ctx, e, conn)
	case refusesUser(mywire.CodeOf(err)) && s.cfg().Target == upstream.TargetAny:
		return upstream.Report{}, nil // it is up
	}
	return upstream.Report{}, err
}

// askRole queries the role on a connection, which it closes or keeps.
func (h *hosts) askRole(ctx context.Context, e upstream.Endpoint, conn *mywire.Server) (upstream.Report, error) {
	ask := roleOfMySQLSQL
	if conn.IsMariaDB() {
		ask = roleOfMariaDBSQL
	}
	rows, err := conn.Query(ctx, ask)
	if mywire.CodeOf(err) == mywire.ErrUnknownVariable { // a fork that lacks the variable
		rows, err = conn.Query(ctx, roleSQL)
	}
	if err == nil && (len(rows) != 1 || len(rows[0]) != 2) {
		err = errors.New("no answer to the question for its role")
	}
	if err != nil {
		_ = conn.Close()
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return upstream.Report{}, err
	}
	r := upstream.Report{Role: upstream.RoleStandby, Position: transactions(rows[0][1].String)}
	if isOff(rows[0][0].String) { // MariaDB returns words from 12.0.1 on
		r.Role, r.Follows = upstream.RolePrimary, follows(ctx, conn)
	}
	h.srv.roles.Put(e, conn)
	return r, nil
}

// transactions counts the transactions in a set of GTIDs: MariaDB's "0-1-77,1-2-5" has the last
// one of each domain, MySQL's "uuid:1-77:99,uuid:tag:1-5" the intervals of each server. Parts
// that it cannot parse count as 0.
func transactions(set string) (n uint64) {
	for _, of := range strings.Split(set, ",") {
		domain := strings.Split(strings.TrimSpace(of), ":")
		if len(domain) == 1 {
			last, _ := strconv.ParseUint(domain[0][strings.LastIndexByte(domain[0], '-')+1:], 10, 64)
			n += last
			continue
		}
		for _, interval := range domain[1:] {
			from, to, is := strings.Cut(interval, "-")
			if !is {
				to = from
			}
			first, err := strconv.ParseUint(from, 10, 64)
			last, err2 := strconv.ParseUint(to, 10, 64)
			if err == nil && err2 == nil && last >= first { // otherwise a tag
				n += last - first + 1
			}
		}
	}
	return n
}

// follows reports whether a server applies another one's writes, as far as the user can see
// that.
func follows(ctx context.Context, conn *mywire.Server) bool {
	ask := "SELECT 'n', COUNT(*) FROM performance_schema.replication_connection_status WHERE service_state = 'ON'"
	if conn.IsMariaDB() {
		ask = "SHOW GLOBAL STATUS WHERE Variable_name = 'Slaves_running'"
	}
	rows, err := conn.Query(ctx, ask)
	if err != nil {
		return false // the next query shows whether the connection still works
	}
	return len(rows) == 1 && len(rows[0]) == 2 && rows[0][1].Valid && rows[0][1].String != "0"
}
