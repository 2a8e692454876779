package sim

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"runtime/debug"
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/state"
)

// Options configure a run. Zero values are drawn from the seed.
type Options struct {
	Seed      uint64
	Replicas  int
	Preset    string
	Profile   string
	Idle      time.Duration                         // idle time after which a session expires
	Strong    bool                                  // mostly strong operations on single keys, which rarely conflict: good for the fast path
	Unequal   bool                                  // replicas have different election timeouts, which change at each start
	Mixed     bool                                  // some replicas run an older version until a restart
	Tune      func(*Profile)                        // changes the profile
	Hook      func(*World, uint64, consensus.Event) // called for the events of the cores; may inject faults
	Mutations consensus.Mutations
	Defects   Defects
	Trace     io.Writer // receives a trace of the run

	// Heal is how long, in virtual time, a cluster without faults may take to answer all
	// requests and to agree. Default: 30 s.
	Heal time.Duration
}

// Config is the configuration of a run.
type Config struct {
	Replicas      int           // at the start
	Preset        string        // of the consensus
	Profile       string        // which faults are injected
	Oracle        bool          // the replicas use the checkers' oracle instead of the store
	Tick          int64         // nanoseconds
	Election      int           // ticks
	Heartbeat     int           // ticks
	Unequal       bool          // election timeouts differ, by up to a factor of four, and change at restarts
	Mixed         bool          // some replicas run a version that knows only an older format, until a restart
	SnapshotBytes int64         // size of the log at which a replica takes a snapshot
	IndexReads    bool          // strong reads ask a majority instead of using the lease
	Clients       int           // concurrent clients
	Operations    int           // of all clients
	Active        time.Duration // how long clients and faults are active, in nanoseconds
	SessionIdle   time.Duration // idle time after which a session expires, in nanoseconds
}

// Stats counts what happened in a run.
type Stats struct {
	Events          uint64        // steps of the simulation
	Messages        uint64        // sent
	Syncs           uint64        // flushes of disks
	Snapshots       uint64        // written
	Ships           uint64        // snapshots sent to another replica
	Operations      uint64        // issued by clients
	Failed          uint64        // operations that failed
	Fast            uint64        // operations answered by the fast path
	Expired         uint64        // sessions that expired
	Ended           uint64        // sessions that the cluster ended
	Virtual         time.Duration // simulated time, in nanoseconds
	Faults          Faults        // how often each fault was injected
	Keys, Undecided uint64        // histories given to the linearizability checker, and those that it gave up
	Checked         uint64        // operations whose answers were compared
}

// Result is the result of a run.
type Result struct {
	Seed       uint64      // of the run
	Config     Config      // drawn from the seed
	Hash       uint64      // of everything that was sent, written and answered
	Violations []Violation // found by the checks
	Stats      Stats       // of the run
}

// Run runs one seed and checks it.
func Run(o Options) (result Result, err error) {
	o.Heal = cmp.Or(o.Heal, 30*time.Second)
	w := &World{
		Options: o, random: newRandom(o.Seed), sum: newHash(), lastAddr: consensus.FirstClient,
		leaders: map[uint64]uint64{}, openers: map[uint64]uint64{}, images: map[uint64]uint64{},
		log: commits{byOp: map[uint64]uint64{}, issued: map[entryID]issue{}, moments: []moment{{known: true}, {known: true, index: 1}}},
	}
	w.assemble()
	if err := w.draw(); err != nil {
		return Result{}, err
	}
	w.play()
	if len(w.Violations) == 0 {
		w.checker.timeAdvances()
		w.checker.lifetimes()
		if !w.spoilt {
			w.checker.run()
		}
	}
	w.Stats.Virtual = time.Duration(w.now)
	return Result{Seed: o.Seed, Config: w.Config, Hash: w.sum.sum, Violations: w.Violations, Stats: w.Stats}, nil
}

// assemble initializes the parts of a world.
func (w *World) assemble() { w.nemesis.World, w.checker.World = w, w }

// draw draws what the options leave open.
func (w *World) draw() error {
	r := w.random.fork("config")
	c := Config{
		Replicas: pick(r, []int{3, 3, 3, 3, 5, 5, 5, 2, 4, 7}), Preset: pick(r, consensus.PresetNames()),
		Profile: pick(r, Profiles()).Name, Oracle: r.chance(0.2), Tick: int64(10 * time.Millisecond),
		Heartbeat: 1 + r.below(3), IndexReads: r.chance(0.15),
		Clients: 2 + r.below(4), Operations: 60 + r.below(200),
		Active: time.Duration(r.between(800*time.Millisecond, 3*time.Second)), SessionIdle: pick(r, []time.Duration{time.Hour, time.Hour, time.Hour, time.Hour, time.Hour, time.Hour, time.Hour, 300 * time.Millisecond}),
	}
	c.Election = 4*c.Heartbeat + r.below(12)
	if w.Replicas > 0 {
		c.Replicas = w.Options.Replicas
	}
	if w.Preset != "" {
		c.Preset = w.Options.Preset
	}
	if w.Options.Profile != "" {
		c.Profile = w.Options.Profile
	}
	if w.Options.Idle > 0 {
		c.SessionIdle = w.Idle
	}
	p, err := ProfileByName(c.Profile)
	if err != nil {
		return err
	}
	if w.Tune != nil {
		w.Tune(&p)
	}
	preset, err := consensus.Preset(c.Preset)
	if err != nil {
		return fmt.Errorf("simulate: %w", err)
	}
	if p.Delay > 5*time.Millisecond {
		c.Election *= 3
	}
	c.SnapshotBytes = p.SnapshotBytes
	c.Unequal = w.random.fork("unequal").chance(0.3) || w.Options.Unequal
	c.Mixed = w.random.fork("mixed").chance(0.2) || w.Options.Mixed
	w.Config, w.profile = c, p
	w.net = newNetwork(w, p.Delay)
	w.nemesis.own = w.random.fork("ambush") // a new name would change what every seed does
	w.net.loss, w.net.duplicate = p.Loss, p.Duplicate
	w.load = &workload{
		random: w.random.fork("load"), keys: pick(r, []int{1, 2, 3, 8, 8}), weak: 0.2 + 0.6*r.fraction(),
		spans: pick(r, []float64{0, 0.05, 0.2}), timed: pick(r, []float64{0, 0, 0.2}),
	}
	if w.Options.Strong {
		w.load.keys, w.load.weak, w.load.spans, w.load.timed = maxKeys/2, 0.1, 0, 0
	}
	w.populate(r, preset)
	return nil
}

// populate creates the machines and the clients.
func (w *World) populate(r *random, preset consensus.Switches) {
	var members []consensus.Member
	for id := 1; id <= w.Config.Replicas; id++ {
		members = append(members, consensus.Member{ID: uint64(id), Addr: fmt.Sprintf("r%d", id)})
	}
	for _, m := range members {
		w.addReplica(m.ID, members, preset)
	}
	for i := range w.Config.Clients {
		c := &client{
			w: w, place: firstClientPlace + place(i), random: w.random.fork("client").forkNumber(i), depth: 1 + r.below(6), writes: pick(r, []float64{0.05, 0.4, 0.6, 0.9}),
			left: w.Config.Operations / w.Config.Clients, think: w.Config.Active * time.Duration(w.Config.Clients) / time.Duration(w.Config.Operations) / 2,
		}
		if r.chance(0.15) {
			c.make = func() driver { return newSimpleClient(w) }
		} else {
			c.weak = true
			c.make = func() driver { return newSessionClient(w, c) }
		}
		w.clients = append(w.clients, c)
	}
	w.admin = newAdmin(w)
}

func (w *World) addReplica(id uint64, members []consensus.Member, preset consensus.Switches) *replica {
	x := &replica{w: w, id: id, random: w.random.fork("replica").forkNumber(int(id)), members: members, preset: preset, slow: 1}
	x.clock = newMachineClock(x.random, w.profile.Drift, w.profile.Skew)
	segment := 20 + x.random.below(300)
	if w.profile.Segment > 0 {
		segment = w.profile.Segment
	}
	x.disk = newDisk(w, x, w.profile.Sync, segment)
	w.replicas = append(w.replicas, x)
	return x
}

func (w *World) coreConfig(r *replica) consensus.Config {
	election := w.Config.Election
	if w.Config.Unequal {
		election *= pick(r.random, []int{1, 2, 4})
	}
	if w.Config.Mixed && r.knows < consensus.Format {
		r.knows = r.version()
	}
	return consensus.Config{
		Knows: r.knows,
		ID:    r.id, Members: r.members, Switches: r.preset, Seed: r.random.next(), TickNanos: w.Config.Tick,
		ElectionTicks: election, HeartbeatTicks: w.Config.Heartbeat, IndexReads: w.Config.IndexReads, MaxDrift: 0.1,
		SnapshotBytes: w.Config.SnapshotBytes, KeepBytes: w.Config.SnapshotBytes / 4, SessionIdle: w.Config.SessionIdle,
		Mutations: w.Options.Mutations, Trace: r.observe,
	}
}

// version returns the newest format that a replica knows: at its first start an older one or
// the newest, later more likely the newest.
func (r *replica) version() uint64 {
	switch own := r.w.random.fork("version").forkNumber(int(r.id*100 + r.starts)); {
	case r.knows == 0 && r.members == nil: // it joins
		return consensus.Format
	case own.chance(0.5):
		return consensus.Format
	}
	return max(r.knows, 1)
}

// known returns the newest format that all members know, as far as all of them run.
func (w *World) known() uint64 {
	all := uint64(consensus.Format)
	x := w.leader()
	if x == nil {
		return all
	}
	for _, m := range x.core.Members() {
		r := w.replica(m.ID)
		if !r.up {
			return 0
		}
		all = min(all, r.core.Brief().Knows)
	}
	return all
}

func (w *World) newMachine() machine {
	if w.Config.Oracle {
		return newOracle()
	}
	return store{state.New(state.Config{})}
}

// store is the real machine, driven as in package replica.
type store struct{ *state.Store }

// Advance implements consensus.Machine.
func (s store) Advance(revision uint64, now int64) {
	if due := s.Due(); due != 0 && due <= now {
		s.Apply(revision, now, nil)
	}
}

// play runs the world: faults while clients are active, then without faults until all clients
// are served and all replicas agree.
func (w *World) play() {
	defer func() {
		// The core and the engine panic when an invariant is broken. Here that is a violation
		// of this seed like any other.
		if p := recover(); p != nil {
			w.violate("panic", "%v\n%s", p, debug.Stack())
		}
	}()
	for _, r := range w.replicas {
		w.after(w.random.between(0, 50*time.Millisecond), r.start)
	}
	for _, c := range w.clients {
		w.after(w.random.between(0, 50*time.Millisecond), c.start)
	}
	w.admin.start()
	end := int64(w.Config.Active)
	w.nemesis.run(&w.profile, end)
	w.until(end+int64(200*time.Millisecond), nil)
	if len(w.Violations) > 0 {
		return
	}
	w.healing = true
	w.heal()
	if !w.until(w.now+int64(w.Heal), w.served) && len(w.Violations) == 0 {
		w.unserved()
		return
	}
	w.over = true
	if !w.until(w.now+int64(w.Heal), w.agreed) && len(w.Violations) == 0 {
		w.disagreed()
	}
}

// served reports whether every client has all its answers and no change of members is in
// progress.
func (w *World) served() bool {
	for _, c := range w.clients {
		if c.left > 0 || c.open > 0 {
			return false
		}
	}
	return w.admin.idle()
}

func (w *World) unserved() {
	for _, o := range w.history {
		if o.returned == 0 && !w.sessions[o.session].crashed {
			w.violate("liveness", "no answer after %d s without faults: %v", w.Heal/time.Second, o)
			return
		}
	}
	w.violate("liveness", "the change of members %v does not end", w.admin.doing())
}

// agreed reports whether all replicas have applied the same entries, every acknowledged write
// is ordered, the cluster has the newest format that all know, and replicas whose state differs
// have stopped.
func (w *World) agreed() bool {
	var first *consensus.Status
	format := uint64(math.MaxUint64) // the oldest
	for _, r := range w.replicas {
		if r.gone {
			continue
		}
		if !r.up || r.odd != 0 {
			return false
		}
		s := r.core.Brief()
		if first == nil {
			first = &s
		}
		if s.Applied != first.Applied || s.Last != s.Applied || s.View != first.View || s.Intents > 0 {
			return false
		}
		if s.Pool > 0 && w.Stats.Faults.ClientCrashes == 0 {
			return false // every operation was executed: S7
		}
		format = min(format, s.Format)
	}
	return format >= w.known()
}

func (w *World) disagreed() {
	text := ""
	for _, r := range w.replicas {
		switch {
		case r.gone:
		case !r.up:
			text += fmt.Sprintf("; %d is down", r.id)
		default:
			s := r.core.Brief()
			text += fmt.Sprintf("; %d: term %d view %d leader %d applied %d of %d, %d intents, %d in the pool", r.id, s.Term, s.View, s.Leader, s.Applied, s.Last, s.Intents, s.Pool)
		}
	}
	w.violate("convergence", "after %d s without faults or load%s", w.Heal/time.Second, text)
}
