package torture

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/outbox"
)

// envWorker makes the test binary a relay process.
const envWorker = "WEIR_TORTURE_TEST_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(envWorker) == "" {
		os.Exit(labtest.Main(m))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := Worker(ctx, os.Stdin, os.Stdout, slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
		slog.Error("relay", "error", err)
		os.Exit(1)
	}
}

// tortured runs cfg with relays that are this binary, and fails the test when
// a promise was broken.
func tortured(t *testing.T, cfg Config) *Result {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Worker == nil {
		cfg.Worker = []string{exe}
	}
	cfg.WorkerEnv = []string{envWorker + "=1"}
	cfg.Durability = lab.Fast
	if cfg.Patience == 0 {
		cfg.Patience = time.Minute // only a defect takes it
	}
	if testing.Verbose() {
		cfg.WorkerLog = t.Output()
	}
	res, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s, %s, claim %s: %d kills (%d of leaders, %d of those that tail), %d of the database, %d of the broker; "+
		"%d committed, %d lost, %d out of order, %d duplicates, %d phantoms; %+v",
		res.Server, res.Sink, res.Claim, res.Kills, res.Leaders, res.Tailing, res.Database, res.Broker,
		res.Committed, res.Lost, res.OutOfOrder, res.Duplicates, res.Phantoms, res.Writing)
	return res
}

func requireEngine(t *testing.T, engine string) {
	t.Helper()
	switch engine {
	case "postgres":
		labtest.RequirePostgres(t)
	case "mariadb":
		labtest.RequireMariaDB(t)
	case "mysql":
		labtest.RequireMySQL(t)
	}
}

// TestTorture is the short form of `weir outbox torture`.
func TestTorture(t *testing.T) {
	for _, c := range []Config{
		{Engine: "postgres", Claim: outbox.Poll, DatabaseKills: 1, BrokerKills: 1},
		// A tail of PostgreSQL begins when the transactions of the moment have ended.
		{Engine: "postgres", Claim: outbox.Log, DatabaseKills: 1, BrokerKills: 1, Kills: 4},
		{Engine: "mariadb", Claim: outbox.Poll, DatabaseKills: 1, BrokerKills: 1},
		{Engine: "mariadb", Claim: outbox.Log, DatabaseKills: 1, BrokerKills: 1},
		{Engine: "sqlite", Claim: outbox.Poll, BrokerKills: 1},
	} {
		t.Run(c.Engine+"/"+c.Claim.String(), func(t *testing.T) {
			requireEngine(t, c.Engine)
			c.Duration, c.Pauses, c.Producers = time.Duration(testkit.Rounds(2, 6))*time.Second/2, 1, testkit.Rounds(3, 6)
			if c.Kills == 0 {
				c.Kills = testkit.Rounds(3, 15)
			}
			res := tortured(t, c)
			for _, v := range res.Violations {
				t.Error(v)
			}
			for _, e := range res.Examples {
				t.Log(e)
			}
		})
	}
}
