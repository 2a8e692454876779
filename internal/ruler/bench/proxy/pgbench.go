package proxybench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// pgbenchScale is the size of pgbench's tables: 100,000 accounts each.
const pgbenchScale = 10

// bouncerPool is how many server connections the lab's PgBouncer has.
const bouncerPool = 20

// transactions compares pgbench's simple updates: BEGIN, an UPDATE of an account, its SELECT,
// an INSERT into the history, COMMIT, each its own prepared message. pgbench is the client
// because its users know what it does. It reports the rate and failures, but not the latency of
// each transaction.
func (r *run) transactions(ctx context.Context, clients int) error {
	side, err := r.pgbenchSide(ctx, clients)
	if side == nil {
		return err
	}
	e := r.experiment("transactions", clients, fmt.Sprintf("pgbench -N -M prepared, transactions per second, %s", clientsName(clients)))
	ways, err := r.plain()
	if err != nil {
		return err
	}
	switch {
	case r.bouncer == nil || !r.pooledStatements():
	case clients > bouncerPool:
		// A thread of pgbench that waits for one client's statement to be prepared stops the
		// transactions of its other clients, which may hold all connections: after 120 s
		// PgBouncer gives up.
		r.Leave("PgBouncer with pgbench's transactions for more than %d clients, the number of its server connections: pgbench and PgBouncer would wait for each other", bouncerPool)
	default:
		ways = append(ways, r.pgbouncer())
	}
	ways = append(ways, weirWay(r.weir, "weir", "", bench.NotApplicable))
	for _, w := range ways {
		e.Sides = append(e.Sides, side(w))
	}
	return r.measure(ctx, e)
}

// pgbenchSide creates pgbench's tables, and returns a function that makes the side of a way to
// the server; nil if that is not possible, which the report mentions.
func (r *run) pgbenchSide(ctx context.Context, clients int) (func(way) bench.Side, error) {
	db, ok := r.db.(*lab.Postgres)
	if !ok {
		r.Leave("pgbench's transactions: they need a private server")
		return nil, nil
	}
	bin, err := pgbenchPath(ctx)
	if err != nil {
		r.Leave("pgbench's transactions: %v", err)
		return nil, nil
	}
	// Each experiment has new tables, so that none starts with the bloat of another.
	if _, err := pgbench(ctx, bin, nil, "-i", "-q", "-s", strconv.Itoa(pgbenchScale), r.direct().dsn); err != nil {
		return nil, fmt.Errorf("make pgbench's tables: %w", err)
	}
	return func(w way) bench.Side {
		return bench.Side{
			Name: w.name, Factors: map[string]string{"via": w.via},
			Run: func(ctx context.Context, _ int) (bench.Sample, error) {
				return pgbenchRound(ctx, bin, w, clients, r.o.Plan.Duration, db.PID())
			},
		}
	}, nil
}

// pgbenchPath finds pgbench next to the server's programs, or in the PATH.
func pgbenchPath(ctx context.Context) (string, error) {
	dir, _, err := lab.FindPostgres(ctx, "")
	if err != nil {
		return "", err
	}
	if path, err := exec.LookPath(filepath.Join(dir, "pgbench")); err == nil {
		return path, nil
	}
	path, err := exec.LookPath("pgbench")
	if err != nil {
		return "", errors.New("pgbench is not installed; install it with: apt-get install postgresql-contrib")
	}
	return path, nil
}

// pgbenchRound runs pgbench once over a way to the server, whose process is server.
func pgbenchRound(ctx context.Context, bin string, w way, clients int, d time.Duration, server int) (bench.Sample, error) {
	s := bench.Sample{InFlight: clients}
	var client measure.Usage // known when it has ended
	watch := w.watch(server)
	watch[bench.RoleClient] = func() (measure.Usage, error) { return client, nil }
	since, err := measure.Usages(watch)
	if err != nil {
		return s, err
	}
	machine, start := measure.ReadMachine(), time.Now()
	// -T takes whole seconds.
	seconds := max(1, int(d.Round(time.Second).Seconds()))
	args := []string{
		"-n", "-N", "-M", "prepared", "-c", strconv.Itoa(clients), "-j", strconv.Itoa(min(2, clients)),
		"-T", strconv.Itoa(seconds), w.dsn,
	}
	said, err := pgbench(ctx, bin, &client, args...)
	if err != nil {
		return s, fmt.Errorf("%s: %w", w.name, err)
	}
	activity := measure.ReadMachine().Since(machine)
	s.Machine, s.Started = &activity, start.UTC()
	if s.Processes, err = since(); err != nil {
		return s, err
	}
	tps, done, err := parsePgbench(said)
	if err != nil {
		return s, err
	}
	// pgbench's rate excludes the time in which it connects, and so does Seconds.
	s.Ops, s.Seconds = done, float64(done)/tps
	return s, nil
}

// pgbench runs the program and returns its output. used, if not nil, gets its CPU time.
func pgbench(ctx context.Context, bin string, used *measure.Usage, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, bin, args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("pgbench: %w: %s", err, out)
	}
	if used != nil {
		used.UserSeconds = cmd.ProcessState.UserTime().Seconds()
		used.SystemSeconds = cmd.ProcessState.SystemTime().Seconds()
		used.Processes = 1
	}
	return string(out), nil
}

var (
	pgbenchRate   = regexp.MustCompile(`(?m)^tps = ([0-9.]+) \(without initial connection time\)`)
	pgbenchDone   = regexp.MustCompile(`(?m)^number of transactions actually processed: ([0-9]+)`)
	pgbenchFailed = regexp.MustCompile(`(?m)^number of failed transactions: ([0-9]+)`)
)

// parsePgbench parses the rate and the number of transactions from pgbench's output.
func parsePgbench(said string) (tps float64, done int64, err error) {
	rate, count := pgbenchRate.FindStringSubmatch(said), pgbenchDone.FindStringSubmatch(said)
	if rate == nil || count == nil {
		return 0, 0, fmt.Errorf("read what pgbench printed: no rate in %q", said)
	}
	if failed := pgbenchFailed.FindStringSubmatch(said); failed != nil && failed[1] != "0" {
		return 0, 0, fmt.Errorf("pgbench: %s transactions failed", failed[1])
	}
	tps, err1 := strconv.ParseFloat(rate[1], 64)
	done, err2 := strconv.ParseInt(count[1], 10, 64)
	if err := errors.Join(err1, err2); err != nil || tps <= 0 || done <= 0 {
		return 0, 0, fmt.Errorf("read what pgbench printed: %d transactions, %g a second: %w", done, tps, err)
	}
	return tps, done, nil
}
