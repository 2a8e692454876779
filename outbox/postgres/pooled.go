package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/outbox/pooled"
	"github.com/weirdb/weir/outbox"
)

// Check implements [outbox.Checker]. It succeeds if a connection leads directly to the server.
// Otherwise it succeeds if sessions have processes of the server of their own and keep them while
// others are in transactions, and the pooler is no weir whose mode is another than session. What
// it misses, watchSession finds when the pooler moves the session that holds a lock.
func (s *Store) Check(ctx context.Context) error {
	err := s.pooled.Run(ctx, s.look, func(ctx context.Context) (pooled.Session, error) {
		cfg, err := s.connConfig(ctx)
		if err != nil {
			return nil, err
		}
		cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // a pooler may lose what was prepared
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

// look finds out where a connection of the pool leads. It is direct if the server confirms the
// process id of the login, and the client's address and port. There is a pooler if the login had
// another process id. Nothing is known of connections through a TCP proxy or NAT and of Unix
// sockets.
func (s *Store) look(ctx context.Context) (pooled.Path, error) {
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		return pooled.Unknown, fmt.Errorf("connect: %w", err)
	}
	defer c.Release()
	conn := c.Conn().PgConn()
	got, err := conn.Exec(ctx, "SELECT pg_catalog.pg_backend_pid(), pg_catalog.host(pg_catalog.inet_client_addr()), pg_catalog.inet_client_port()").ReadAll()
	if err != nil || len(got) != 1 || len(got[0].Rows) != 1 {
		return pooled.Unknown, err
	}
	row := got[0].Rows[0]
	if string(row[0]) != strconv.FormatUint(uint64(conn.PID()), 10) {
		return pooled.Pooler, askWeir(ctx, conn)
	}
	here, ok := conn.Conn().LocalAddr().(*net.TCPAddr)
	if !ok {
		return pooled.Unknown, nil
	}
	seen, err := netip.ParseAddr(string(row[1]))
	if err != nil { // the server's socket is a Unix one
		return pooled.Unknown, nil
	}
	at := here.AddrPort()
	if seen.Unmap() == at.Addr().Unmap().WithZone("") && string(row[2]) == strconv.Itoa(int(at.Port())) {
		return pooled.Direct, nil
	}
	return pooled.Unknown, nil
}

// askWeir returns ErrPooled if the pooler is weir's own proxy and its mode is not session: it may
// keep each session on a connection for now, because it still reads what functions do, or as each
// has an event loop of its own. Other servers answer with a syntax error.
func askWeir(ctx context.Context, conn *pgconn.PgConn) error {
	got, err := conn.Exec(ctx, "SHOW WEIR STATUS").ReadAll()
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
		return nil
	}
	if err != nil || len(got) != 1 || len(got[0].Rows) != 1 {
		return err
	}
	for i, f := range got[0].FieldDescriptions {
		if f.Name == "pins" && !slices.Contains(strings.Split(string(got[0].Rows[0][i]), ","), "session_mode") {
			return outbox.ErrPooled
		}
	}
	return nil
}

// poolCheckSession implements [pooled.Session].
type poolCheckSession struct{ conn *pgx.Conn }

func (c poolCheckSession) Number(ctx context.Context) (int64, error) {
	pid, err := simpleValue(ctx, c.conn, "SELECT pg_catalog.pg_backend_pid()")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(pid), 10, 64)
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
