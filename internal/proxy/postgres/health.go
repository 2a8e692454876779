package postgres

import (
	"cmp"
	"context"
	"io"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// Healthy reports why the server cannot be used, nil if it can: see
// core.Server.CheckHealth.
func (s *Server) Healthy(ctx context.Context) error {
	return s.CheckHealth(ctx, s.Host(), func(ctx context.Context) (bool, error) { return false, s.askHealth(ctx) })
}

// askHealth begins a login, which needs no password: that the server asks for one,
// or refuses the user, shows that it works.
func (s *Server) askHealth(ctx context.Context) error {
	cfg, _, err := s.toHost(ctx, s.cfg().Postgres)
	if err != nil {
		return err
	}
	cfg.Timeout = core.HealthPatience
	return answers(ctx, cfg)
}

// answers begins a login at a server: it needs no password.
func answers(ctx context.Context, cfg pgwire.ConnectConfig) (err error) {
	conn, err := pgwire.Open(ctx, cfg)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err != nil {
			err = context.Cause(ctx)
		}
		_ = conn.Close()
	}()
	user := cmp.Or(cfg.User, "postgres")
	out := pgwire.AppendStartup(nil, 3<<16, []pgwire.Param{{Name: "user", Value: user}, {Name: "database", Value: cmp.Or(cfg.Database, user)}})
	if _, err := conn.Write(out); err != nil {
		return err
	}
	var head [pgwire.HeaderLen]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return err
	}
	_, n, _ := pgwire.Peek(head[:])
	if head[0] != pgwire.ServerError || n < pgwire.HeaderLen || n > 64<<10 {
		return nil
	}
	body := make([]byte, n-pgwire.HeaderLen)
	if _, err := io.ReadFull(conn, body); err != nil {
		return err
	}
	e, err := pgwire.ParseError(body)
	if err != nil || e.Code == pgwire.CodeCannotConnectNow {
		return cmp.Or[error](err, e)
	}
	return nil
}
