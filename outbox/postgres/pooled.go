package postgres

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/outbox/pooled"
)

// Check implements [outbox.Checker]. It succeeds if a connection leads directly to the server,
// or else if two sessions have two processes of the server and keep them while the other is
// in a transaction.
func (s *Store) Check(ctx context.Context) error {
	err := s.pooled.Run(ctx, s.isUnproxied, func(ctx context.Context) (pooled.Session, error) {
		cfg, err := s.connConfig(ctx)
		if err != nil {
			return nil, err
		}
		cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // a pooler may lose what was prepared
		cfg.RuntimeParams["standard_conforming_strings"] = "on"    // pgx asks for it in that mode
		c, err := pgx.ConnectConfig(ctx, cfg)
		if err != nil {
			return nil, err
		}
		return poolCheckSession{c}, nil
	})
	if err != nil {
		return s.wrap("check the sessions of", err)
	}
	return nil
}

// isUnproxied reports whether a connection of the pool is known to lead directly to the
// server: the server confirms the process id of the login, and the client's address and port.
// It returns false for connections through a TCP proxy or NAT and for Unix sockets.
func (s *Store) isUnproxied(ctx context.Context) (bool, error) {
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		return false, fmt.Errorf("connect: %w", err)
	}
	defer c.Release()
	conn := c.Conn().PgConn()
	here, ok := conn.Conn().LocalAddr().(*net.TCPAddr)
	if !ok {
		return false, nil
	}
	got, err := conn.Exec(ctx, "SELECT pg_catalog.pg_backend_pid(), pg_catalog.host(pg_catalog.inet_client_addr()), pg_catalog.inet_client_port()").ReadAll()
	if err != nil || len(got) != 1 || len(got[0].Rows) != 1 {
		return false, err
	}
	row := got[0].Rows[0]
	seen, err := netip.ParseAddr(string(row[1]))
	if err != nil { // the server's socket is a Unix one
		return false, nil
	}
	at := here.AddrPort()
	return string(row[0]) == strconv.FormatUint(uint64(conn.PID()), 10) &&
		seen.Unmap() == at.Addr().Unmap().WithZone("") && string(row[2]) == strconv.Itoa(int(at.Port())), nil
}

// poolCheckSession implements [pooled.Session].
type poolCheckSession struct{ conn *pgx.Conn }

func (c poolCheckSession) Number(ctx context.Context) (pid int64, err error) {
	err = c.conn.QueryRow(ctx, "SELECT pg_catalog.pg_backend_pid()").Scan(&pid)
	return pid, err
}

func (c poolCheckSession) Begin(ctx context.Context) (pooled.Tx, error) {
	tx, err := c.conn.Begin(ctx)
	return poolCheckTx{c, tx}, err
}

func (c poolCheckSession) Close() { closeConn(c.conn) }

type poolCheckTx struct {
	poolCheckSession
	tx pgx.Tx
}

func (t poolCheckTx) Rollback(ctx context.Context) error { return t.tx.Rollback(ctx) }
