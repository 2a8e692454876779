package postgres

import (
	"errors"
	"fmt"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
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
			if is, err := s.isUnproxied(r.ctx()); !is || err != nil {
				t.Errorf("a connection to the server is taken for one of a pooler: %v", err)
			}
			r.dsn = labtest.PgBouncer(t, pg, tt.cfg).DSN(name)
			s = r.open(t, Options{})
			if is, err := s.isUnproxied(r.ctx()); is || err != nil {
				t.Errorf("a connection of a pooler is taken for one to the server: %v", err)
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
