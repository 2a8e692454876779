package outboxbench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	outboxload "github.com/weirdb/weir/internal/ruler/bench/outbox/load"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/outbox"
)

// rig is a server and everything else that the experiments need.
type rig struct {
	o         Options
	db        suite.Server
	dsn       string
	producers *sql.DB
	meter     suite.Meter // nil: the engine has no counters
	info      measure.Server
	stores    map[shape]outbox.Store

	connections int // of producers, at most
}

func startRig(ctx context.Context, o Options) (_ *rig, err error) {
	r := &rig{o: o, stores: make(map[shape]outbox.Store)}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.stop())
		}
	}()
	if o.DSN != "" {
		r.db = suite.Foreign(o.DSN)
	} else if r.db, err = engine(o.Engine).start(ctx, o.Durability, o.FsyncLatency); err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Engine.Title(), err)
	}
	r.dsn = r.db.DSN(engine(o.Engine).database())
	connections := slices.Max(append(slices.Concat(o.Plan.Producers, o.Plan.MixedProducers), o.Plan.OpenProducers, 8)) + 4
	r.connections = connections
	if r.producers, err = engine(o.Engine).openProducers(r.dsn, connections, o.Durability); err != nil {
		return nil, fmt.Errorf("open the producers' pool: %w", err)
	}
	if r.meter, err = engine(o.Engine).openMeter(r.dsn); err != nil {
		return nil, err
	}
	if r.info, err = r.describe(ctx); err != nil {
		return nil, err
	}
	version, _, _ := strings.Cut(r.info.Version, " ")
	o.Say("%s %s, %s", r.info.Name, version, r.durability())
	return r, nil
}

func (r *rig) describe(ctx context.Context) (measure.Server, error) {
	if r.meter != nil {
		return r.meter.Server(ctx)
	}
	s := measure.Server{Name: r.o.Engine.Title(), Settings: make(map[string]string)}
	if err := r.producers.QueryRowContext(ctx, "SELECT sqlite_version()").Scan(&s.Version); err != nil {
		return s, fmt.Errorf("read the version: %w", err)
	}
	for _, name := range []string{"journal_mode", "synchronous", "page_size"} {
		var v string
		if err := r.producers.QueryRowContext(ctx, "PRAGMA "+name).Scan(&v); err != nil {
			return s, fmt.Errorf("read %s: %w", name, err)
		}
		s.Settings[name] = v
	}
	return s, nil
}

// durability is the durability of an acknowledged commit.
func (r *rig) durability() string {
	if r.o.DSN != "" {
		return "as the server is set"
	}
	if r.o.FsyncLatency > 0 {
		return fmt.Sprintf("%s, every flush %s slower", r.o.Durability, r.o.FsyncLatency)
	}
	return r.o.Durability.String()
}

// store opens the tables of a shape, and creates them the first time.
func (r *rig) store(ctx context.Context, s shape) (outbox.Store, error) {
	if st := r.stores[s]; st != nil {
		return st, nil
	}
	st, err := engine(r.o.Engine).openStore(ctx, r.dsn, s.table())
	if err != nil {
		return nil, err
	}
	if _, err := st.Migrate(ctx, s.plan(r.o.Plan.PartitionDays)); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	r.stores[s] = st
	return st, nil
}

// exec runs statements on the server.
func (r *rig) exec(ctx context.Context, statements ...string) error {
	for _, text := range statements {
		if _, err := r.producers.ExecContext(ctx, text); err != nil {
			verb, _, _ := strings.Cut(text, "(")
			return fmt.Errorf("%s: %w", verb, err)
		}
	}
	return nil
}

// stop stops everything and, on a server that is not private, drops the tables.
func (r *rig) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	for s, st := range r.stores {
		errs = append(errs, st.Close())
		if r.o.DSN != "" {
			errs = append(errs, r.exec(ctx, engine(r.o.Engine).dropped(s.table())...))
		}
	}
	if r.o.DSN != "" && r.producers != nil {
		errs = append(errs, r.exec(ctx, "DROP TABLE IF EXISTS "+bodies))
	}
	if r.meter != nil {
		errs = append(errs, r.meter.Close(ctx))
	}
	if r.producers != nil {
		errs = append(errs, r.producers.Close())
	}
	if r.db != nil {
		errs = append(errs, r.db.Stop(ctx))
	}
	return errors.Join(errs...)
}

// watch reads the usage of the server's processes.
func (r *rig) watch() outboxload.Watch {
	pid := r.db.PID()
	if pid == 0 {
		return nil
	}
	return outboxload.Watch{bench.RoleServer: func() (measure.Usage, error) { return measure.Tree(pid) }}
}

// counting reads the server's counters before and after a run.
type counting struct {
	rig           *rig
	before, after suite.Counters
}

func (c *counting) begin(ctx context.Context) (err error) {
	c.before, err = suite.ReadCounters(ctx, c.rig.meter, c.rig.db)
	return err
}

func (c *counting) end(ctx context.Context) (err error) {
	if r := c.rig; r.o.Engine == suite.PostgreSQL {
		// A session of PostgreSQL reports its reads late, but at once when it ends.
		idle := r.connections
		r.producers.SetMaxIdleConns(0)
		r.producers.SetMaxIdleConns(idle)
	}
	c.after, err = suite.ReadCounters(ctx, c.rig.meter, c.rig.db)
	return err
}

// into stores the difference in a sample.
func (c *counting) into(s *bench.Sample, ops int64) {
	if c.rig.meter != nil {
		s.Server = c.after.Since(c.before, ops)
	}
}

// classify returns the class of a producer's error.
func classify(err error) string {
	var state interface{ SQLState() string }
	switch {
	case errors.As(err, &state):
		return state.SQLState()
	case errors.Is(err, context.Canceled):
		return "cancelled"
	default:
		return "error"
	}
}

// measure runs an experiment and keeps its samples and result.
func (s *run) measure(ctx context.Context, e bench.Experiment) (*bench.Result, error) {
	env := measure.ReadEnvironment()
	env.Durability, env.Servers = s.rig.durability(), []measure.Server{s.info}
	flushDir := s.o.Out
	if s.o.Durability == lab.Fast || s.o.Plan.Hasty {
		flushDir = "" // neither the disk nor calibrations matter
	}
	return s.Measure(ctx, e, env, flushDir)
}
