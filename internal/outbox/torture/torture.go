// Package torture tests an outbox by killing its parts. A run has real relay processes, a real
// database and a broker. While producers commit, it kills relays with SIGKILL, pauses some of
// them, and kills and restarts the database and the broker. A ledger records both ends: what is
// committed in the database, in the order of each key's commits, and what arrived, in the order
// of arrival. The verdict compares them.
//
//	producers --INSERT--> database <--read, ack-- relay relay relay --publish--> broker
//	    |                    x                      x     x     x                  x
//	    +------ what was committed ----> ledger <---- what arrived, in order ------+
//
// mutant_test.go shows that a run finds defects: it breaks relays on purpose.
package torture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/outbox"
)

// Config is a run.
type Config struct {
	// Worker is the command that starts a process that runs [Worker]. Required.
	Worker []string
	// WorkerEnv is added to its environment. Default: nothing.
	WorkerEnv []string
	// Engine is one of [Engines], which the run starts. DSN is an existing database
	// instead: it is not killed, and the run uses tables of its own in it.
	// Default: postgres.
	Engine, DSN string
	// Durability of a database that the run starts.
	Durability lab.Durability
	// Sink is one of [Sinks]. Default: ledger.
	Sink string
	// Claim is outbox.Config.Claim. Default: Auto. SkipLocked does not keep the
	// order of keys, which the verdict shows.
	Claim outbox.ClaimMode
	// Plan of the tables. Default: layout Queue, one shard.
	Plan outbox.Plan

	// Relays is the number of relay processes. Default: 3.
	Relays int
	// Producers is the number of producers. Default: 6.
	Producers int
	// MaxInFlight is outbox.Config.MaxInFlight. Default: 1000.
	MaxInFlight int

	// Duration is how long producers commit and parts are killed. Default: 30 s.
	Duration time.Duration
	// Kills is the number of relays to kill, at random times; a slow machine may
	// reach fewer. Default: 10 per second.
	Kills int
	// Following kills only relays that lead and follow the log, and waits for one
	// before every kill, also of the database and the broker. Fewer kills fit into
	// Duration then. Default: any relay.
	Following bool
	// DatabaseKills and BrokerKills are how often those are killed, Pauses how
	// often a relay is paused. Default: none.
	DatabaseKills, BrokerKills, Pauses int
	// Quiet turns off the misbehavior of the ledger's broker.
	Quiet bool
	// Patience is how long, after the end of Duration, nothing may arrive before
	// missing messages count as lost. Default: 90 s: a relay waits up to a minute
	// before it retries a broker that took long to fail.
	Patience time.Duration

	// Log receives the events of the run, WorkerLog the logs of relay processes.
	// Default: nothing.
	Log       *slog.Logger
	WorkerLog io.Writer
}

func (c Config) withDefaults() Config {
	if c.DSN == "" {
		c.Engine = cmp.Or(c.Engine, "postgres")
	}
	c.Sink = cmp.Or(c.Sink, "ledger")
	c.Relays, c.Producers = cmp.Or(c.Relays, 3), cmp.Or(c.Producers, 6)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 1000)
	c.Duration, c.Patience = cmp.Or(c.Duration, 30*time.Second), cmp.Or(c.Patience, 90*time.Second)
	c.Kills = cmp.Or(c.Kills, int(10*c.Duration/time.Second))
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.WorkerLog == nil {
		c.WorkerLog = io.Discard
	}
	return c
}

// Validate returns an error for the first invalid setting.
func (c Config) Validate() error {
	c = c.withDefaults()
	switch {
	case len(c.Worker) == 0:
		return errors.New("torture: no command for relay processes")
	case c.DSN != "" && c.Engine != "":
		return errors.New("torture: a database that exists and one to be started: want one of them")
	case c.DSN != "" && c.DatabaseKills > 0, c.Engine == "sqlite" && c.DatabaseKills > 0:
		return errors.New("torture: only a database server that the run has started can be killed")
	case c.Relays < 1 || c.Producers < 1 || c.MaxInFlight < 1 || c.Kills < 0 || c.DatabaseKills < 0 || c.BrokerKills < 0 || c.Pauses < 0:
		return errors.New("torture: relays, producers and messages in flight must be at least 1, kills at least 0")
	case c.Following && c.Claim != outbox.Log && c.Claim != outbox.Auto:
		return fmt.Errorf("torture: claim %s follows no log", c.Claim)
	case c.Duration < 0 || c.Patience < 0:
		return errors.New("torture: durations must not be negative")
	}
	return nil
}

// Result is the result of a run.
type Result struct {
	Server   string  `json:"server"`         // name and version
	Sink     string  `json:"sink"`           // the broker
	Claim    string  `json:"claim"`          // how relays claim messages
	Layout   string  `json:"layout"`         // queue or history
	Seconds  float64 `json:"seconds"`        // duration of the run
	Kills    int     `json:"kills"`          // of relays
	Leaders  int     `json:"leader_kills"`   // of them, of relays that led
	Tailing  int     `json:"tailing_kills"`  // of them, of relays that followed the log
	Pauses   int     `json:"pauses"`         // how often a relay was stopped for a while
	Database int     `json:"database_kills"` // kills of the database
	Broker   int     `json:"broker_kills"`   // kills of the broker
	// How many of those happened while a relay followed the log.
	DatabaseTailing int `json:"database_kills_tailing"`
	BrokerTailing   int `json:"broker_kills_tailing"` // kills of the broker while a relay followed the log

	Writing   Writing `json:"writing"`    // what the producers did
	TakeOvers uint64  `json:"take_overs"` // how often a relay took a shard's leadership
	Retries   uint64  `json:"retries"`    // deliveries that relays tried again
	Outages   uint64  `json:"outages"`    // requests that met no broker, or whose answer did not come
	// Stray is the number of rows that only a relay's sweep found.
	Stray uint64 `json:"stray"`

	Verdict
	DuplicatesPerKill float64 `json:"duplicates_per_kill"` // kills of relays, database and broker
	// Violations are the guarantees of the outbox that were broken.
	Violations []string `json:"violations"`
}

// run is one run of the harness.
type run struct {
	Config
	ledger *Ledger
	db     *database
	store  outbox.Store
	broker broker
	fleet  *fleet
	counts writing
	result Result
}

// Run executes a run. An error means that the run failed; what it found is in the result.
func Run(ctx context.Context, cfg Config) (res *Result, err error) {
	r := &run{Config: cfg.withDefaults(), ledger: NewLedger()}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	if err := r.runFaults(ctx); err != nil {
		return nil, err
	}
	r.result.Seconds = time.Since(began).Seconds()
	if err := r.drain(ctx); err != nil {
		return nil, err
	}
	if err := r.judge(ctx); err != nil {
		return nil, err
	}
	return &r.result, nil
}

// brokerLatency is how long the ledger's broker takes to answer: long enough for relays to be killed
// during a request.
const brokerLatency = time.Millisecond

// prepare starts the database, the broker and the relays.
func (r *run) prepare(ctx context.Context) (err error) {
	if r.DSN != "" {
		r.db, err = openDatabase(ctx, r.DSN)
	} else {
		r.db, err = startDatabase(ctx, r.Engine, r.Durability)
	}
	if err != nil {
		return err
	}
	r.db.pool.SetMaxIdleConns(r.Producers)
	if err := r.db.migrate(ctx, r.Plan); err != nil {
		return err
	}
	if r.store, err = r.db.open(ctx); err != nil {
		return err
	}
	trouble := everyTrouble
	if r.Quiet {
		trouble = Trouble{}
	}
	if r.broker, err = startBroker(ctx, r.Sink, r.ledger, trouble, brokerLatency); err != nil {
		return err
	}
	if b, ok := r.broker.(*ledgerBroker); ok {
		b.setVisible(r.db.visible)
	}
	r.fleet = &fleet{command: r.Worker, env: r.WorkerEnv, logs: r.WorkerLog, order: WorkerConfig{
		Database: r.db.Text, Table: r.db.table, Sink: r.broker.Address(), Claim: r.Claim.String(),
		// A sweep would hide lost messages.
		MaxInFlight: r.MaxInFlight, SweepEvery: 24 * time.Hour,
	}}
	if r.DSN == "" && r.Engine == "sqlite" {
		r.fleet.order.Database = "sqlite:" + r.db.Text
	}
	for range r.Relays {
		if err := r.fleet.launch(); err != nil {
			return err
		}
	}
	return nil
}

// runFaults kills and pauses parts while producers commit.
func (r *run) runFaults(ctx context.Context) error {
	calm, cancel := context.WithTimeout(ctx, r.Duration)
	defer cancel()
	var producers sync.WaitGroup
	for id := range r.Producers {
		p := newProducer(r.db, r.ledger, &r.counts, id, r.Engine != "sqlite", r.Sink == "ledger")
		producers.Go(func() { p.run(calm) })
	}
	var failures [4]error
	var killers sync.WaitGroup
	killers.Go(func() { failures[0] = r.repeatRandomly(calm, r.Kills, r.killRelay) })
	killers.Go(func() { failures[1] = r.repeatRandomly(calm, r.Pauses, r.pauseRelay) })
	killers.Go(func() { failures[2] = r.repeatRandomly(calm, r.DatabaseKills, r.killDatabase) })
	killers.Go(func() { failures[3] = r.repeatRandomly(calm, r.BrokerKills, r.killBroker) })
	killers.Wait()
	producers.Wait()
	return errors.Join(append(failures[:], ctx.Err())...)
}

// repeatRandomly calls f n times, at a random time in each n-th of Duration, or as soon as possible
// after that if f takes long.
func (r *run) repeatRandomly(ctx context.Context, n int, f func(context.Context) error) error {
	began := time.Now()
	for i := range n {
		gap := r.Duration / time.Duration(n)
		pause(ctx, time.Until(began.Add(time.Duration(i)*gap+rand.N(gap+1)*9/10)))
		if ctx.Err() != nil {
			break
		}
		if err := f(ctx); err != nil {
			return err
		}
	}
	return nil
}

// follower returns a relay that leads and follows the log. With Following it waits for one.
func (r *run) follower(ctx context.Context) *relayProcess {
	for r.Following && ctx.Err() == nil {
		if s := r.fleet.follower(); s != nil {
			// Not at once: a new leader first reads the backlog.
			pause(ctx, rand.N(200*time.Millisecond))
			if _, tails := s.leading(); tails {
				return s
			}
		}
		pause(ctx, reportEvery)
	}
	return r.fleet.follower()
}

func (r *run) killRelay(ctx context.Context) error {
	victim, leads, tails := r.fleet.pick()
	if r.Following {
		if victim = r.follower(ctx); victim == nil {
			return nil
		}
		leads, tails = victim.leading()
	}
	if err := r.fleet.kill(victim); err != nil {
		return err
	}
	r.result.Kills++
	if leads {
		r.result.Leaders++
	}
	if tails {
		r.result.Tailing++
	}
	return r.fleet.launch()
}

// pauseRelay stops a process long enough that others may take over, and continues it while it still
// believes to lead.
func (r *run) pauseRelay(ctx context.Context) error {
	victim, _, _ := r.fleet.pick()
	if victim.cmd.Process.Signal(syscall.SIGSTOP) != nil {
		return nil // killed meanwhile
	}
	r.result.Pauses++
	pause(ctx, 200*time.Millisecond+rand.N(3*time.Second))
	_ = victim.cmd.Process.Signal(syscall.SIGCONT) // unless it was killed meanwhile
	return nil
}

func (r *run) killDatabase(ctx context.Context) error {
	if r.follower(ctx) != nil {
		r.result.DatabaseTailing++
	}
	r.db.server.Kill()
	r.result.Database++
	r.Log.Info("killed the database", "time", r.result.Database)
	return restart(ctx, r.db.server, "database")
}

func (r *run) killBroker(ctx context.Context) error {
	if r.follower(ctx) != nil {
		r.result.BrokerTailing++
	}
	r.broker.Kill()
	r.result.Broker++
	r.Log.Info("killed the broker", "time", r.result.Broker)
	return restart(ctx, r.broker, "broker")
}

// restartPatience bounds the restart of a killed server.
const restartPatience = 2 * time.Minute

// restart restarts a server, even after ctx has ended.
func restart(ctx context.Context, m killableServer, what string) error {
	pause(ctx, rand.N(300*time.Millisecond))
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), restartPatience)
	defer cancel()
	if err := m.Restart(work); err != nil {
		return fmt.Errorf("restart the %s: %w", what, err)
	}
	return nil
}

// drain waits until nothing is pending, or there is no progress for Patience.
func (r *run) drain(ctx context.Context) error {
	last, changed := r.progress(ctx), time.Now()
	for ctx.Err() == nil && time.Since(changed) < r.Patience {
		now := r.progress(ctx)
		if now.err == nil && now.left == 0 {
			return nil
		}
		if now != last {
			last, changed = now, time.Now()
		}
		pause(ctx, 50*time.Millisecond)
	}
	r.Log.Warn("waiting for deliveries has been given up", "left", last.left, "error", last.err)
	return ctx.Err()
}

// drainProgress is the state that changes while messages are delivered.
type drainProgress struct {
	left    int64
	arrived int
	err     error
}

func (r *run) progress(ctx context.Context) drainProgress {
	s, err := r.store.Status(ctx)
	if err != nil {
		return drainProgress{arrived: r.ledger.Arrived(), err: errUnknown}
	}
	return drainProgress{left: s.Pending + s.Scheduled, arrived: r.ledger.Arrived()}
}

// errUnknown replaces all errors of Status, so that states are comparable.
var errUnknown = errors.New("the tables cannot be counted")

// judge stops the relays and computes the result.
func (r *run) judge(ctx context.Context) error {
	r.fleet.stop()
	if src, ok := r.broker.(reader); ok {
		var bad error
		err := src.read(ctx, func(payload []byte) {
			e, err := DecodeEntry(payload)
			if err != nil {
				bad = err
				return
			}
			r.ledger.Delivered(e)
		})
		if err := errors.Join(err, bad); err != nil {
			return err
		}
	}
	if err := r.db.committed(ctx, r.ledger.Committed); err != nil {
		return err
	}
	dead, err := r.db.list(ctx, r.store, outbox.Dead)
	if err != nil {
		return err
	}
	waiting, err := r.db.list(ctx, r.store, outbox.Pending, outbox.Scheduled)
	if err != nil {
		return err
	}
	res := &r.result
	res.Verdict = r.ledger.Verdict(dead, waiting)
	res.Writing = r.counts.counts()
	res.Server, res.Sink, res.Claim, res.Layout = r.db.version, r.Sink, r.Claim.String(), r.Plan.Layout.String()
	if b, ok := r.broker.(*realBroker); ok {
		res.Sink = b.version
	}
	words, died := r.fleet.totals()
	res.TakeOvers, res.Retries, res.Outages, res.Stray = words.TakeOvers, words.Retries, words.Outages, words.Stray
	if n := res.Kills + res.Database + res.Broker; n > 0 {
		res.DuplicatesPerKill = float64(res.Duplicates) / float64(n)
	}
	res.Violations = r.violations(died)
	return nil
}

// violations returns the guarantees that were violated.
func (r *run) violations(died []string) []string {
	v := &r.result
	out := died
	say := func(n int, format string) {
		if n > 0 {
			out = append(out, fmt.Sprintf(format, n))
		}
	}
	say(v.Lost, "%d messages were lost")
	say(v.Waiting, "%d messages were not delivered and are still in the outbox, where nothing had changed for "+r.Patience.String())
	say(v.OutOfOrder, "%d messages came out of the order of their key")
	say(v.Phantoms, "%d messages were delivered that were never committed")
	say(v.Invisible, "%d messages were delivered before their transaction could be seen")
	say(v.Forgotten, "%d messages were forgotten by the database after their commit")
	say(v.PoisonPassed, "%d messages were delivered that the broker had refused")
	say(int(v.Stray), "%d messages were missed by reading and found by a sweep")
	// Messages are repeated when the leader changes or an answer of the broker is lost. Each time,
	// at most the messages in flight are repeated.
	times := v.Kills + v.Pauses + v.Broker + v.Database*r.Relays + int(v.TakeOvers+v.Outages)
	if v.Duplicates > (times+1)*r.MaxInFlight {
		out = append(out, fmt.Sprintf("%d duplicates are more than %d times %d messages in flight", v.Duplicates, times, r.MaxInFlight))
	}
	if v.Committed == 0 {
		out = append(out, "nothing was committed: the run shows nothing")
	}
	return out
}

// close stops what was started. In an existing database it keeps the tables only if there were
// violations.
func (r *run) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopPatience)
	defer cancel()
	var errs []error
	if r.fleet != nil {
		r.fleet.stop()
	}
	if r.broker != nil {
		errs = append(errs, r.broker.Stop(ctx))
	}
	if r.store != nil {
		errs = append(errs, r.store.Close())
	}
	if r.DSN != "" && r.db != nil && len(r.result.Violations) == 0 {
		errs = append(errs, r.db.drop(ctx))
	}
	if r.db != nil {
		errs = append(errs, r.db.Close(ctx))
	}
	return errors.Join(errs...)
}
