package mysql

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file is who may look at the proxy and kill what runs through it, and what
// there is to see beside snapshots.

// adminDatabase is the database name under which weir answers itself.
const adminDatabase = "weir"

// isAdmin tells who may open the console and kill what belongs to others.
func (s *Server) isAdmin(user string) bool {
	return user != "" && user == s.cfg().MySQL.User || slices.Contains(s.cfg().AdminUsers, user)
}

// authenticateAdmin lets in the DSN's user and those listed, by a secret that weir
// holds, else as the server decides; without a password only who may have what weir
// has: see core.MayBorrow.
func (s *Server) authenticateAdmin(ctx context.Context, v *visitor) error {
	secret, known := s.creds.Secret(v.key.user)
	allowed := s.isAdmin(v.key.user)
	switch {
	case allowed && !known && v.c.borrows:
		return v.wire.Trust(ctx)
	case allowed && !known && s.cfg().Auth == AuthRelay:
		v.key.database = s.cfg().MySQL.Database
		v.wire.Response.Database = v.key.database
		return s.relay(ctx, v)
	case !allowed:
		secret = mywire.Secret{} // fails as a wrong password does
	}
	_, err := v.wire.Authenticate(ctx, secret)
	return err
}

func (s *Server) showConfig() sight.Table {
	c := s.cfg()
	t := sight.Table{Cols: []string{"key", "value"}}
	for _, kv := range [][2]any{
		{"mysql", c.MySQL.Address},
		{"listen", s.Addr()},
		{"mode", c.Mode},
		{"pool_size", c.PoolSize},
		{"read_lanes", c.ReadLanes},
		{"write_lanes", c.WriteLanes},
		{"rows_lane", !c.NoRowsLane},
		{"solo_lane", !c.NoSoloLane},
		{"local_infile", c.LocalInfile},
		{"loops", c.Loops},
		{"max_clients", c.MaxClients},
		{"max_waiting", c.MaxWaiting},
		{"queue_timeout", c.QueueTimeout.String()},
		{"connect_timeout", c.ConnectTimeout.String()},
		{"connect_patience", c.ConnectPatience.String()},
		{"auth", c.Auth},
	} {
		t.Add(kv[0], kv[1])
	}
	return t
}

func (s *Server) showClients(ctx context.Context) sight.Table {
	t := sight.Table{Cols: []string{"id", "database", "user", "address", "state", "pins", "statements", "grouped", "errors", "connected_s"}}
	for _, l := range s.Loops {
		err := l.Call(ctx, func() {
			for _, c := range l.Clients {
				t.Add(c.id, c.p.key.database, c.p.key.user, c.addr, c.state(), c.pins, c.stats.units, c.stats.grouped, c.stats.errors, int((l.Now - c.since).Seconds()))
			}
		})
		if errors.Is(err, netloop.ErrStopped) {
			break
		}
	}
	return t
}

// state names what the client is doing.
func (c *client) state() string {
	switch {
	case c.waiting:
		return "waiting"
	case c.inTx():
		return "in transaction"
	case c.busy():
		return "active"
	case c.pins != 0:
		return "pinned"
	}
	return "idle"
}

func (s *Server) showServers(ctx context.Context) sight.Table {
	t := sight.Table{Cols: []string{"id", "database", "user", "mode", "in_flight", "prepared", "settings", "age_s"}}
	for _, l := range s.Loops {
		err := l.Call(ctx, func() {
			for _, p := range l.PoolList {
				for _, b := range p.backends {
					t.Add(b.id, p.key.database, p.key.user, b.mode, b.depth(), len(b.prepared), b.set.Len(), int((l.Now - b.born).Seconds()))
				}
			}
		})
		if errors.Is(err, netloop.ErrStopped) {
			break
		}
	}
	return t
}

// weirStatus answers SHOW WEIR STATUS on an ordinary connection.
func (c *client) weirStatus() sight.Table {
	id, mode := "", "none"
	if b := c.served; b != nil {
		id, mode = strconv.FormatUint(uint64(b.id), 10), b.mode.String()
	}
	t := sight.Table{Cols: []string{"backend_id", "backend_mode", "pool", "pins", "statements", "grouped", "errors", "servers", "free", "waiting"}}
	t.Add(id, mode, c.p.key, c.pins, c.stats.units, c.stats.grouped, c.stats.errors, len(c.p.backends), len(c.p.free), len(c.p.excl)+len(c.p.reads))
	return t
}
