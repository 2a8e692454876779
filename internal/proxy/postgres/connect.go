package postgres

import (
	"context"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is how weir itself gets to the server.

// backendConn is a logged-in connection on its way into a pool.
type backendConn struct {
	role   string // of its startup message
	fd     int
	pid    uint32
	secret []byte
	params map[string]string

	endpoint upstream.Endpoint
	via      *pgwire.ConnectConfig // where the Authenticator said that it goes; nil without one
}

func (c *backendConn) close() { _ = unix.Close(c.fd) }

// dialBackend opens and logs in one backend.
func (s *Server) dialBackend(ctx context.Context, key poolKey) (*backendConn, error) {
	if s.cfg().Authenticator != nil {
		return s.Way.dialRoute(ctx, key)
	}
	cfg := s.backendConfig(key)
	be, e, err := s.connect(ctx, cfg)
	if err != nil {
		if pgwire.CodeOf(err) == pgwire.CodeInvalidPassword {
			s.creds.Refuted(key.user, cfg.Keys)
		}
		return nil, err
	}
	return s.handOver(be, e, key.role)
}

// backendConfig says how weir logs in as a user by itself.
func (s *Server) backendConfig(key poolKey) pgwire.ConnectConfig {
	cfg := s.cfg().Postgres
	cfg.User, cfg.Database = key.user, key.database
	cfg.Password, cfg.Keys = s.creds.of(key.user)
	cfg.Params = key.startup(cfg.Params)
	return cfg
}

// startup is what a startup message of the pool's connections has, to have the role be that
// of the pool's clients.
func (k poolKey) startup(params []pgwire.Param) []pgwire.Param {
	if k.role == "" {
		return params
	}
	return append(slices.Clip(params), pgwire.Param{Name: roleName, Value: k.role})
}

// upstreamEndpoint is where a connection of the Authenticator's goes.
func upstreamEndpoint(host string, conn net.Conn) upstream.Endpoint {
	return upstream.Endpoint{Host: host, Address: conn.RemoteAddr().String()}
}

func (s *Server) handOver(be *pgwire.Backend, e upstream.Endpoint, role string) (*backendConn, error) {
	fd, err := netloop.Detach(s.DialCtx, be.Conn, &s.Background)
	if err != nil {
		_ = be.Conn.Close()
		return nil, err
	}
	params := make(map[string]string, len(be.Params))
	for _, p := range be.Params {
		params[p.Name] = p.Value
	}
	return &backendConn{role: role, fd: fd, pid: be.PID, secret: be.Secret, params: params, endpoint: e}, nil
}
