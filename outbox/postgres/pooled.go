package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/outbox"
)

// checkPatience bounds a check: a pooler without a free connection keeps it waiting.
const checkPatience = 15 * time.Second

// checkRounds is how often sessions are looked at.
const checkRounds = 3

// Check implements [outbox.Checker]: two sessions are two processes of the server,
// and each stays the one that it is while the other is in a transaction.
func (s *Store) Check(ctx context.Context) error {
	s.mu.Lock()
	known := s.direct
	s.mu.Unlock()
	if known {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	if err := s.check(ctx); err != nil {
		return s.wrap("check the sessions of", err)
	}
	s.mu.Lock()
	s.direct = true
	s.mu.Unlock()
	return nil
}

func (s *Store) check(ctx context.Context) error {
	var sessions [2]*pgx.Conn
	for i := range sessions {
		cfg, err := s.connConfig(ctx)
		if err != nil {
			return err
		}
		cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // a pooler may lose what was prepared
		cfg.RuntimeParams["standard_conforming_strings"] = "on"    // pgx asks for it in that mode
		if sessions[i], err = pgx.ConnectConfig(ctx, cfg); err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		defer closeConn(sessions[i])
	}
	process := func(c *pgx.Conn) (pid int64, err error) {
		err = c.QueryRow(ctx, "SELECT pg_catalog.pg_backend_pid()").Scan(&pid)
		return pid, err
	}
	first, err := process(sessions[0])
	if err != nil {
		return err
	}
	for range checkRounds {
		// Before the transaction: in a pool of one it would keep the other out.
		if other, err := process(sessions[1]); err != nil || other == first {
			return pooled(err)
		}
		tx, err := sessions[1].Begin(ctx)
		if err != nil {
			return fmt.Errorf("begin: %w", err)
		}
		other, err := process(sessions[1])
		if err != nil || other == first {
			return pooled(err)
		}
		// More than once: a pooler that takes its connections in turn may give it
		// the same by chance.
		for range 2 {
			if again, err := process(sessions[0]); err != nil || again != first {
				return pooled(err)
			}
		}
		if err := tx.Rollback(ctx); err != nil {
			return fmt.Errorf("roll back: %w", err)
		}
	}
	return nil
}

// pooled is ErrPooled unless asking has failed.
func pooled(err error) error {
	if err == nil {
		err = outbox.ErrPooled
	}
	return err
}
