package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/outbox/pooled"
	"github.com/weirdb/weir/outbox"
)

// A pooler that keeps sessions apart is one to work through; others are refused,
// however they choose among their connections.
func TestCheckSeesPoolers(t *testing.T) {
	pg := server(t)
	for _, tt := range []struct {
		cfg  lab.PgBouncerConfig
		want error
	}{
		{lab.PgBouncerConfig{PoolMode: "session"}, nil},
		{lab.PgBouncerConfig{PoolMode: "transaction"}, outbox.ErrPooled},
		{lab.PgBouncerConfig{PoolMode: "transaction", PoolSize: 1}, outbox.ErrPooled},
		{lab.PgBouncerConfig{PoolMode: "transaction", Settings: map[string]string{"server_round_robin": "1", "min_pool_size": "3"}, PoolSize: 3}, outbox.ErrPooled},
		{lab.PgBouncerConfig{PoolMode: "statement"}, outbox.ErrPooled},
	} {
		t.Run(fmt.Sprintf("%s %d %v", tt.cfg.PoolMode, tt.cfg.PoolSize, tt.cfg.Settings), func(t *testing.T) {
			r := newRig(t, pg)
			r.migrated(outbox.Plan{})
			var name string
			r.check(r.db.QueryRowContext(r.ctx(), "SELECT current_database()").Scan(&name))
			s := r.open(t, Options{})
			if path, err := s.look(r.ctx()); path != pooled.Direct || err != nil {
				t.Errorf("a connection to the server is taken for %d: %v", path, err)
			}
			r.dsn = labtest.PgBouncer(t, pg, tt.cfg).DSN(name)
			s = r.open(t, Options{})
			if path, err := s.look(r.ctx()); path != pooled.Pooler || err != nil {
				t.Errorf("a connection of a pooler is taken for %d: %v", path, err)
			}
			if err := s.Check(r.ctx()); !errors.Is(err, tt.want) {
				t.Errorf("check: %v, want %v", err, tt.want)
			}
			if tt.want == nil {
				return
			}
			for _, claim := range []outbox.ClaimMode{outbox.Auto, outbox.SkipLocked} {
				relay, err := outbox.NewRelay(s, &ledger{}, outbox.Config{Claim: claim})
				r.check(err)
				if err := relay.Run(r.ctx()); !errors.Is(err, tt.want) {
					t.Errorf("a relay ended with %v, want %v", err, tt.want)
				}
			}
			if _, err := s.Migrate(r.ctx(), outbox.Plan{}); !errors.Is(err, tt.want) {
				t.Errorf("migrate: %v, want %v", err, tt.want)
			}
		})
	}
}

// throughPooler opens a store that works through a pooler in transaction mode, which the check has
// missed.
func (r *rig) throughPooler(cfg lab.PgBouncerConfig) *Store {
	r.Helper()
	var name string
	r.check(r.db.QueryRowContext(r.ctx(), "SELECT current_database()").Scan(&name))
	cfg.PoolMode = "transaction"
	pooler, err := pgxpool.ParseConfig(labtest.PgBouncer(r.TB, server(r.TB), cfg).DSN(name))
	r.check(err)
	pooler.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	pool, err := pgxpool.NewWithConfig(r.ctx(), pooler)
	r.check(err)
	r.Cleanup(pool.Close)
	return r.overPool(pool)
}

// overPool returns a store whose check for poolers has succeeded.
func (r *rig) overPool(pool *pgxpool.Pool) *Store {
	r.Helper()
	s, err := New(pool, Options{})
	r.check(err)
	r.check(s.pooled.Run(r.ctx(), func(context.Context) (pooled.Path, error) { return pooled.Direct, nil }, nil))
	return s
}

// Two relays that a pooler gives the same connection do not both lead: the server would grant the
// lock of its session to both.
func TestRelaysOfOneConnection(t *testing.T) {
	r := newRig(t, server(t))
	r.migrated(outbox.Plan{})
	first := r.throughPooler(lab.PgBouncerConfig{PoolSize: 1})
	second := r.overPool(first.pool)
	_, _, err := second.ready(r.ctx()) // as it stands by
	r.check(err)
	l := r.lead(first)
	second.standby[0] = time.Now().Add(-standbyPatience)
	if _, err := second.Lead(r.ctx(), 0); !errors.Is(err, outbox.ErrPooled) {
		t.Errorf("a second relay leads on the same connection: %v, want %v", err, outbox.ErrPooled)
	}
	if _, err := l.Renewed(r.ctx()); err != nil {
		t.Errorf("the leader after that: %v", err)
	}
}

// A relay whose epoch has passed leads no longer, although its session and its lock are there.
func TestLeaderComparesItsEpoch(t *testing.T) {
	r := newRig(t, server(t))
	l := r.lead(r.migrated(outbox.Plan{}))
	if _, err := l.Renewed(r.ctx()); err != nil {
		t.Errorf("with its own epoch: %v", err)
	}
	r.exec("UPDATE weir_outbox_lease SET epoch = epoch + 1")
	if _, err := l.Renewed(r.ctx()); !errors.Is(err, outbox.ErrDeposed) {
		t.Errorf("with another epoch: %v, want %v", err, outbox.ErrDeposed)
	}
}

// A relay that works through a pooler that the check has missed ends when its session is on
// another connection than its lock.
func TestRelayEndsWhenItsSessionMoves(t *testing.T) {
	for _, claim := range []outbox.ClaimMode{outbox.Auto, outbox.SkipLocked} {
		r := newRig(t, server(t))
		r.migrated(outbox.Plan{})
		s := r.throughPooler(lab.PgBouncerConfig{})
		relay, err := outbox.NewRelay(s, &ledger{}, outbox.Config{Claim: claim})
		r.check(err)
		ended := make(chan error, 1)
		go func() { ended <- relay.Run(r.ctx()) }()
		r.eventually("the relay holds a lock", func() bool {
			var held bool
			r.check(r.db.QueryRowContext(r.ctx(), "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))").Scan(&held))
			return held
		})
		for range 15 { // of 20 connections
			c, err := pgx.ConnectConfig(r.ctx(), s.pool.Config().ConnConfig)
			r.check(err)
			defer closeConn(c)
			_, err = c.Exec(r.ctx(), "BEGIN")
			r.check(err)
		}
		if err := <-ended; !errors.Is(err, outbox.ErrPooled) {
			t.Errorf("%s: the relay ended with %v, want %v", claim, err, outbox.ErrPooled)
		}
	}
}
