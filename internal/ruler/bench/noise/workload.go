package noise

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/measure/loop"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// Workload is an operation that is repeated.
type Workload struct {
	Name  string
	About string
	open  func(context.Context, Config) (*opened, error)
}

// opened is a workload that is ready.
type opened struct {
	op         loop.Op
	watch      map[string]func() (measure.Usage, error)
	servers    []measure.Server
	durability string
	close      func(context.Context) error
}

// Workloads lists the workloads, from the most to the least stable one.
func Workloads() []Workload {
	return []Workload{
		{"cpu", "hashing 64 KiB", openCPU},
		{"select", "reading a row by its key, PostgreSQL", openSelect},
		{"update", "updating a row, flushed at commit, PostgreSQL", openUpdate},
		{"flush", "writing 8 KiB and forcing them to disk", openFlush},
	}
}

// Names lists the names of the workloads.
func Names() []string {
	var out []string
	for _, w := range Workloads() {
		out = append(out, w.Name)
	}
	return out
}

func find(name string) *Workload {
	all := Workloads()
	i := slices.IndexFunc(all, func(w Workload) bool { return w.Name == name })
	if i < 0 {
		return nil
	}
	return &all[i]
}

func openCPU(_ context.Context, c Config) (*opened, error) {
	blocks := make([][]byte, c.Workers)
	for i := range blocks {
		blocks[i] = make([]byte, 64<<10)
	}
	return &opened{
		op: func(_ context.Context, worker int) error {
			b := blocks[worker]
			sum := sha256.Sum256(b)
			copy(b, sum[:]) // so that no two are equal
			return nil
		},
		close: func(context.Context) error { return nil },
	}, nil
}

func openFlush(_ context.Context, c Config) (*opened, error) {
	disks := make([]*measure.Disk, c.Workers)
	closeAll := func(context.Context) error {
		var errs []error
		for _, d := range disks {
			if d != nil {
				errs = append(errs, d.Close())
			}
		}
		return errors.Join(errs...)
	}
	for i := range disks {
		d, err := measure.OpenDisk(cmp.Or(c.Dir, os.TempDir()))
		if err != nil {
			return nil, errors.Join(err, closeAll(context.Background()))
		}
		disks[i] = d
	}
	return &opened{
		op:         func(_ context.Context, worker int) error { return disks[worker].Flush() },
		durability: "flushed",
		close:      closeAll,
	}, nil
}

// rows is how many rows the table of the PostgreSQL workloads has.
const rows = 10_000

func openSelect(ctx context.Context, c Config) (*opened, error) {
	return openPostgres(ctx, c, "SELECT v FROM weir_noise WHERE id = $1")
}

func openUpdate(ctx context.Context, c Config) (*opened, error) {
	return openPostgres(ctx, c, "UPDATE weir_noise SET v = v + 1 WHERE id = $1 RETURNING v")
}

// openPostgres starts a private server, with a connection for each worker.
func openPostgres(ctx context.Context, c Config, sql string) (_ *opened, err error) {
	pg, err := lab.StartPostgres(ctx, lab.PostgresConfig{MaxConnections: c.Workers + 10})
	if err != nil {
		return nil, err
	}
	conns := make([]*pgx.Conn, c.Workers)
	stop := func(ctx context.Context) error {
		for _, conn := range conns {
			if conn != nil {
				conn.Close(ctx) // the server is about to be stopped
			}
		}
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		return pg.Stop(ctx)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, stop(context.WithoutCancel(ctx)))
		}
	}()
	for i := range conns {
		if conns[i], err = pgx.Connect(ctx, pg.DSN("postgres")); err != nil {
			return nil, fmt.Errorf("connect worker %d: %w", i, err)
		}
	}
	for _, q := range []string{
		"CREATE TABLE weir_noise (id int PRIMARY KEY, v int NOT NULL) WITH (fillfactor = 50)",
		fmt.Sprintf("INSERT INTO weir_noise SELECT i, 0 FROM generate_series(0, %d) i", rows-1),
		"VACUUM ANALYZE weir_noise",
	} {
		if _, err := conns[0].Exec(ctx, q); err != nil {
			return nil, fmt.Errorf("make table: %w", err)
		}
	}
	next := make([]int, c.Workers)
	return &opened{
		op: func(ctx context.Context, worker int) error {
			// Each worker has its own rows, so that none waits for another's lock.
			id := (next[worker]*c.Workers + worker) % rows
			next[worker]++
			var v int
			return conns[worker].QueryRow(ctx, sql, id).Scan(&v)
		},
		watch:      map[string]func() (measure.Usage, error){bench.RoleServer: func() (measure.Usage, error) { return measure.Tree(pg.PID()) }},
		servers:    []measure.Server{{Name: "PostgreSQL", Version: pg.Version()}},
		durability: "prod",
		close:      stop,
	}, nil
}
