package proxybench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/floor"
	"github.com/weirdb/weir/internal/ruler/bench/load"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// rig is a server and everything in front of it.
type rig struct {
	o       Options
	engine  *engine
	latency time.Duration // added to the server's flushes
	db      suite.Server
	bouncer *lab.PgBouncer // nil if there is none
	floor   *floor.Process // nil if there is none
	joins   *floor.Process // a floor that groups writes; nil if there is none, or with a foreign server
	weir    *weirProcess
	solo    *weirProcess // without the multi-row lane
	meter   suite.Meter  // on the server itself
	info    measure.Server
}

func startRig(ctx context.Context, o Options, latency time.Duration) (_ *rig, err error) {
	r := &rig{o: o, latency: latency}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.stop())
		}
	}()
	if r.engine, err = engineOf(o.Engine); err != nil {
		return nil, err
	}
	most := o.Plan.most()
	db, err := r.startServer(ctx, needs{connections: most + 100, latency: latency})
	if err != nil {
		return nil, err
	}
	r.db = db
	m, err := r.engine.meter(r.direct().dsn)
	if err != nil {
		return nil, err
	}
	r.meter = m
	if r.info, err = m.Server(ctx); err != nil {
		return nil, err
	}
	version, _, _ := strings.Cut(r.info.Version, " ")
	o.Say("%s %s%s", r.info.Name, version, latencyNote(latency))
	if err := r.startBouncer(ctx, most+100); err != nil {
		return nil, err
	}
	if o.Floor {
		if r.floor, err = startFloor(ctx, o.Binary, r.direct().dsn, ""); err != nil {
			return nil, err
		}
		if !r.foreign() { // how a foreign server assigns ids is unknown
			if r.joins, err = startFloor(ctx, o.Binary, r.direct().dsn, r.engine.joins); err != nil {
				return nil, err
			}
		}
	}
	if r.weir, err = startWeir(ctx, o.Binary, r.engine, r.direct().dsn, o.Plan.always()...); err != nil {
		return nil, err
	}
	if o.Plan.Isolated {
		r.solo, err = startWeir(ctx, o.Binary, r.engine, r.direct().dsn, append(o.Plan.always(), "--no-rows-lane")...)
	}
	return r, err
}

// startServer starts a private server, unless a DSN is given.
func (r *rig) startServer(ctx context.Context, n needs) (suite.Server, error) {
	if r.o.DSN != "" {
		return suite.Foreign(r.o.DSN), nil
	}
	return r.engine.start(ctx, n)
}

// foreign reports whether the server is not private.
func (r *rig) foreign() bool { return r.o.DSN != "" }

// insert and lookup are the first two workloads. On a private server their tables have the
// names from reference report 1.
func (r *rig) insert(hint string) load.Insert {
	if r.foreign() {
		return load.Insert{Table: "weir_bench_test", Hint: hint}
	}
	return load.Insert{Hint: hint}
}

func (r *rig) lookup() load.Select {
	if r.foreign() {
		return load.Select{Table: "weir_bench_keys"}
	}
	return load.Select{}
}

// update is the workload of UPDATEs by key.
func (r *rig) update(hint string) load.Update {
	if r.foreign() {
		return load.Update{Table: "weir_bench_counts", Hint: hint}
	}
	return load.Update{Hint: hint}
}

// durability is the durability of an acknowledged commit.
func (r *rig) durability() string {
	if r.foreign() {
		return "as the server is set"
	}
	return "prod"
}

// startBouncer starts PgBouncer, if it is installed.
func (r *rig) startBouncer(ctx context.Context, clients int) (err error) {
	pg, ok := r.db.(*lab.Postgres)
	if !ok {
		return nil
	}
	r.bouncer, err = lab.StartPgBouncer(ctx, pg, lab.PgBouncerConfig{Binary: r.o.PgBouncer, MaxClients: clients})
	switch {
	case lab.NotInstalled(err):
		r.o.Say("PgBouncer is not installed, so it is left out of the comparison")
	case err != nil:
		return err
	case r.pooledStatements():
		r.o.Say("PgBouncer %s, 20 server connections", r.bouncer.Version())
	default:
		r.o.Say("PgBouncer %s pools no prepared statements (1.21 does), so it is only compared on the simple protocol", r.bouncer.Version())
	}
	return nil
}

func latencyNote(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return fmt.Sprintf(", every flush %s slower", d)
}

// stop stops everything, in the order of dependencies.
func (r *rig) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	if r.meter != nil {
		errs = append(errs, r.meter.Close(ctx))
	}
	for _, w := range []*weirProcess{r.weir, r.solo} {
		if w != nil {
			errs = append(errs, w.stop())
		}
	}
	for _, f := range []*floor.Process{r.floor, r.joins} {
		if f != nil {
			errs = append(errs, f.Stop())
		}
	}
	if r.bouncer != nil {
		errs = append(errs, r.bouncer.Stop(ctx))
	}
	if r.db != nil {
		errs = append(errs, r.db.Stop(ctx))
	}
	return errors.Join(errs...)
}

// way is a way to reach the server.
type way struct {
	name   string
	dsn    string
	proxy  func() (measure.Usage, error) // nil without a proxy
	weir   *weirProcess                  // nil if the way has no weir
	hint   string
	window string // as the factor
	via    string
}

// watch returns functions that read the usage of a way's processes; server is the server's
// process ID, or 0.
func (w way) watch(server int) map[string]func() (measure.Usage, error) {
	watch := make(map[string]func() (measure.Usage, error))
	if server != 0 {
		watch[bench.RoleServer] = func() (measure.Usage, error) { return measure.Tree(server) }
	}
	if w.proxy != nil {
		watch[bench.RoleProxy] = w.proxy
	}
	return watch
}

func (r *rig) direct() way {
	return way{name: "direct", dsn: r.db.DSN(r.engine.database), window: bench.NotApplicable, via: "direct"}
}

// bouncerInfo describes PgBouncer for the list of servers in a report.
func bouncerInfo(b *lab.PgBouncer) measure.Server {
	return measure.Server{Name: "PgBouncer", Version: b.Version()}
}

func (r *rig) pgbouncer() way {
	return way{
		name: "pgbouncer", dsn: r.bouncer.DSN(r.engine.database), window: bench.NotApplicable, via: "pgbouncer",
		proxy: func() (measure.Usage, error) { return measure.Process(r.bouncer.PID()) },
	}
}

func weirWay(w *weirProcess, name, hint, window string) way {
	return way{
		name: name, dsn: w.dsn, proxy: w.usage, weir: w,
		hint: hint, window: window, via: "weir",
	}
}

// pooledStatements reports whether this PgBouncer pools prepared statements.
func (r *rig) pooledStatements() bool {
	major, rest, _ := strings.Cut(r.bouncer.Version(), ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, err1 := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	return err1 == nil && err2 == nil && (a > 1 || b >= 21)
}
