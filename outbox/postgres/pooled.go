package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/outbox/pooled"
)

// Check implements [outbox.Checker]: two sessions are two processes of the server,
// and each stays the one that it is while the other is in a transaction.
func (s *Store) Check(ctx context.Context) error {
	err := s.pooled.Run(ctx, func(ctx context.Context) (pooled.Session, error) {
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
		return compared{c}, nil
	})
	if err != nil {
		return s.wrap("check the sessions of", err)
	}
	return nil
}

// compared is a session that is compared with another one.
type compared struct{ conn *pgx.Conn }

func (c compared) Number(ctx context.Context) (pid int64, err error) {
	err = c.conn.QueryRow(ctx, "SELECT pg_catalog.pg_backend_pid()").Scan(&pid)
	return pid, err
}

func (c compared) Begin(ctx context.Context) (pooled.Tx, error) {
	tx, err := c.conn.Begin(ctx)
	return comparedTx{c, tx}, err
}

func (c compared) Close() { closeConn(c.conn) }

type comparedTx struct {
	compared
	tx pgx.Tx
}

func (t comparedTx) Rollback(ctx context.Context) error { return t.tx.Rollback(ctx) }
