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

// This file opens weir's own connections to the server.

// backendConn is a logged-in connection that will be added to a pool.
type backendConn struct {
	role   string // of its startup message
	fd     int
	pid    uint32
	secret []byte
	params map[string]string

	endpoint upstream.Endpoint
	via      *pgwire.ConnectConfig // the Authenticator's route; nil without one
}

func (c *backendConn) close() { _ = unix.Close(c.fd) }

// dialBackend opens one backend and logs in.
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

// backendConfig says how weir itself logs in as a user.
func (s *Server) backendConfig(key poolKey) pgwire.ConnectConfig {
	cfg := s.cfg().Postgres
	cfg.User, cfg.Database = key.user, key.database
	cfg.Password, cfg.Keys = s.creds.of(key.user)
	cfg.Params = key.startup(cfg.Params)
	return cfg
}

// startup returns the parameters of the startup messages of the pool's connections, with the
// role of the pool's clients.
func (k poolKey) startup(params []pgwire.Param) []pgwire.Param {
	if k.role == "" {
		return params
	}
	return append(slices.Clip(params), pgwire.Param{Name: roleName, Value: k.role})
}

// upstreamEndpoint is the endpoint of a connection along the Authenticator's route.
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
