package replica

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/kvd/resp"
	"github.com/weirdb/weir/internal/kvd/state"
	"github.com/weirdb/weir/internal/kvd/wal"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// Replica is one replica of a cluster, with its disk and its connections. Open
// makes one, Run runs it once.
type Replica struct {
	cfg   Config
	core  *consensus.Core // of the core goroutine
	store *state.Store    // of the core goroutine

	broken error // why the core goroutine must end; of that goroutine

	inbox     *inbox
	alarm     *alarm
	disk      *disk
	snapshots *snapshots
	feed      *feed
	gateway   *gateway
	peers     *peers
	front     *resp.Server // nil without Redis clients
	frontLn   net.Listener

	status atomic.Pointer[Status]
	redis  atomic.Pointer[resp.Status] // the same for Redis clients
	stats  loopStats

	stopping atomic.Bool
	ctx      context.Context // for operations that have no context of their own
	stopped  chan struct{}   // closed when the core goroutine has ended
}

// loopStats are counted by the core goroutine.
type loopStats struct {
	turns  atomic.Uint64
	taken  histogram // messages of a turn
	rounds histogram // operations of a round
}

// Open reads the disk, and listens. Nothing is answered before Run. If a person must act, the
// error says what to do: another replica's directory
// (*wal.IdentityError), one in use (*wal.LockedError), damage (*wal.CorruptError).
func Open(cfg Config) (*Replica, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	r := &Replica{cfg: cfg, inbox: newInbox(), ctx: context.Background(), stopped: make(chan struct{})}
	r.stats.taken, r.stats.rounds = newHistogram(sizeBounds), newHistogram(sizeBounds)
	if err := r.open(); err != nil {
		return nil, fmt.Errorf("open replica %d: %w", cfg.ID, errors.Join(err, r.abandon()))
	}
	return r, nil
}

// open makes the parts, in the order of their dependencies.
func (r *Replica) open() error {
	if err := r.recover(); err != nil {
		return err
	}
	var err error
	if r.alarm, err = newAlarm(r.inbox.poke); err != nil {
		return err
	}
	r.feed = newFeed()
	r.snapshots = newSnapshots(r)
	r.gateway = newGateway(r)
	r.peers = newPeers(r)
	if r.peers.noted, err = r.disk.log.Acked(); err != nil {
		return fmt.Errorf("directory %s: %w", r.cfg.Dir, err)
	}
	maps.Copy(r.peers.acked, r.peers.noted)
	if err := r.peers.findGroup(); err != nil {
		return err
	}
	r.feed.send, r.feed.hangUp = r.peers.trySend, func(to peer.Addr, why error) { r.peers.transport.Disconnect(to, why) }
	r.publish()
	if r.cfg.Redis != "" {
		front := r.cfg.Front
		front.Log = r.cfg.Log.With("part", "resp")
		if r.front, err = resp.New(r.gateway, front); err != nil {
			return err
		}
		r.feed.front = r.front
		if r.frontLn, err = net.Listen("tcp", r.cfg.Redis); err != nil {
			return fmt.Errorf("listen for Redis clients: %w", err)
		}
	}
	// Connections are made from here on; their messages wait until Run.
	open := make(chan struct{})
	defer close(open)
	r.peers.transport, err = peer.Open(r.peers.options(), gated{r.peers, open})
	if err != nil {
		return err
	}
	r.snapshots.transport = r.peers.transport
	return nil
}

// recover reads the disk and builds the core from it.
func (r *Replica) recover() error {
	opts := wal.Options{SegmentBytes: r.cfg.SegmentBytes, Disk: r.cfg.Disk}
	if r.cfg.Memory {
		opts = wal.Options{SegmentBytes: memorySegment, Disk: newMemoryDisk(), NoSync: true}
	}
	begin := time.Now()
	log, found, err := wal.Open(r.cfg.Dir, wal.Identity{Cluster: r.cfg.Cluster, Replica: r.cfg.ID, First: r.cfg.first()}, opts)
	if err != nil {
		return err
	}
	r.disk = newDisk(log, r.inbox, r.cfg.Log)
	if found.Torn != nil {
		r.cfg.Log.Info("a write that a crash cut short was cut off", "file", found.Torn.File, "offset", found.Torn.Offset, "what", found.Torn.What)
	}
	for _, err := range found.Unusable {
		r.cfg.Log.Warn("a snapshot is damaged and was passed over", "error", err)
	}
	r.store = state.New(state.Config{Changes: keptChanges})
	if err := r.build(log, found); err != nil {
		return err
	}
	r.cfg.Log.Info("log read", "created", found.Created, "clean", found.Clean, "snapshot", found.Snapshot.Index,
		"last", found.Last, "revision", r.core.Revision(), "took", time.Since(begin).Round(time.Millisecond).String())
	return nil
}

const (
	// The log of every new cluster begins after an entry at this place, which
	// the core takes as given.
	firstIndex, firstTerm = 1, 1
	// keptChanges is how many changes are kept for watches that reconnect.
	keptChanges = 1 << 16
	// memorySegment is the size of a log that nothing is written to.
	memorySegment = 64 << 10
)

// build makes the core from what was found on the disk. An empty log is begun by
// the first members, or left for the cluster that this replica joins.
func (r *Replica) build(log *wal.Log, found *wal.Recovered) (err error) {
	cfg := r.cfg.core(seedOf(log.Identity()))
	// The directory records which members made the cluster, whatever the options say now: a replica
	// that assumed other first members could win an election among them. The options say where
	// members are.
	if cfg.Members, err = firstMembers(log.Identity().First); err != nil {
		return fmt.Errorf("first members in the directory's identity: %w", err)
	}
	cfg.Addresses = r.cfg.Members
	if found.Last == 0 && len(cfg.Members) > 0 && !r.cfg.Memory {
		// The core's log begins after a first entry that no replica writes.
		if err := log.Append(wal.Record{Kind: wal.Entry, Index: firstIndex, Term: firstTerm, Data: []byte{0}}); err != nil {
			return failed("begin the log", err)
		}
		if err := log.Sync(); err != nil {
			return failed("begin the log", err)
		}
		r.disk.note()
	}
	recovered := consensus.Recovered{Records: func(yield func(consensus.Record) error) error {
		for record, err := range found.Records() {
			if err != nil {
				return err
			}
			if err := yield(coreRecord(&record)); err != nil {
				return err
			}
		}
		return nil
	}}
	if found.Snapshot.Index > 0 {
		state, err := log.Snapshots().Open(found.Snapshot)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, state.Close()) }()
		recovered.Snapshot = state
	}
	if r.core, err = consensus.New(cfg, machine{r.store}, recovered); err != nil {
		return err
	}
	again, err := r.compareFirst(log, cfg.Members)
	if err != nil || !again {
		return err
	}
	return r.build(log, found)
}

// compareFirst checks whether the options name other first members than those who made
// the cluster. That is right if members have changed since, and wrong if the first
// start had a wrong list: a replica that has done nothing yet then takes the options' list,
// and its core must be made again; one that is a cluster by itself does not run.
func (r *Replica) compareFirst(log *wal.Log, made []consensus.Member) (again bool, err error) {
	first, now := log.Identity().First, r.cfg.first()
	others := slices.DeleteFunc(slices.Clone(r.cfg.Members), func(m consensus.Member) bool {
		return slices.ContainsFunc(made, func(f consensus.Member) bool { return f.ID == m.ID })
	})
	switch {
	case len(r.cfg.Members) == 0: // it is only read
		return false, nil
	case now == joins && first != joins && r.core.Fresh():
		return false, fmt.Errorf("directory %s: it was begun by one of the first members of a cluster, with --peers %s and without --join, and has nothing yet: "+
			"remove it and start again with --join, or start without --join", r.cfg.Dir, first)
	case first == now || first == joins || now == joins:
		return false, nil
	case len(others) == 0 && len(made) == len(r.cfg.Members):
		r.cfg.Log.Info("members are at other addresses than at the first start", "directory", first, "options", now)
		return false, nil
	case r.core.Fresh():
		r.cfg.Log.Warn("the first members are those of the options; this replica was first started with others, and has done nothing since",
			"directory", first, "options", now)
		return true, log.SetFirst(now)
	case len(others) > 0 && r.core.SoleMember():
		return false, fmt.Errorf("directory %s: it is a cluster of replica %d alone, since it was first started with --peers %s, and --peers names others now: "+
			"if nothing in it is of use, remove it and start again; else start it with --peers %s, and add the others (start them with --join, then weir kv member add)",
			r.cfg.Dir, r.cfg.ID, first, first)
	}
	r.cfg.Log.Warn("the first members are those of the directory, not of the options; the log knows the present ones", "directory", first, "options", now)
	return false, nil
}

// coreRecord is the core's form of a record.
func coreRecord(w *wal.Record) consensus.Record {
	c := consensus.Record{Term: w.Term, Index: w.Index, Data: w.Data}
	for kind, name := range kinds {
		if name == w.Kind {
			c.Kind = uint8(kind)
		}
	}
	return c
}

// seedOf makes replicas stand for election at different times.
func seedOf(id wal.Identity) uint64 {
	seed := id.Replica
	for _, b := range id.Log {
		seed = seed*1099511628211 ^ uint64(b)
	}
	return seed
}

// abandon closes what open has made before it failed.
func (r *Replica) abandon() error {
	var errs []error
	if r.peers != nil && r.peers.transport != nil {
		errs = append(errs, r.peers.transport.Close())
	}
	if r.frontLn != nil {
		errs = append(errs, r.frontLn.Close())
	}
	if r.alarm != nil {
		errs = append(errs, r.alarm.close())
	}
	if r.snapshots != nil {
		r.snapshots.stop()
	}
	if r.disk != nil {
		errs = append(errs, r.disk.log.Close())
	}
	return errors.Join(errs...)
}

// Addr is where replicas and native clients connect.
func (r *Replica) Addr() string { return r.peers.transport.Addr() }

// RedisAddr is where Redis clients connect, "" for nowhere.
func (r *Replica) RedisAddr() string {
	if r.frontLn == nil {
		return ""
	}
	return r.frontLn.Addr().String()
}

// Run runs the replica until ctx ends or it must not continue: its disk failed
// (*DiskError), or it has forgotten what it acknowledged. It returns nil after
// an orderly end: leadership is handed over, and requests of Redis clients have
// ended or timed out.
func (r *Replica) Run(ctx context.Context) error {
	g := r.begin()
	select {
	case <-ctx.Done():
		r.stopping.Store(true)
		r.leave()
		g.closeFront() // which lets requests end
		<-g.front
	case <-g.halt:
	}
	// A broken replica must not be taken for a leader any longer.
	err := r.peers.transport.Close()
	close(g.stop)
	g.closeFront()
	<-g.front
	g.below.Wait()
	r.peers.meets.Wait()
	r.peers.writeAcked()
	r.snapshots.stop()
	g.closeAbove()
	g.above.Wait()
	r.disk.stop()
	<-g.disk
	err = errors.Join(err, r.alarm.close())
	if g.broken != nil {
		return fmt.Errorf("replica %d: %w", r.cfg.ID, g.broken)
	}
	return err
}

// goroutines are those of a running replica, in the order in which they end.
type goroutines struct {
	front      chan struct{} // closed when Redis clients are no longer served
	closeFront func()
	below      sync.WaitGroup // the core's
	stop       chan struct{}  // ends them
	above      sync.WaitGroup // the gateway's and the feed's
	closeAbove func()
	disk       chan struct{} // closed when the disk's has ended

	once   sync.Once
	broken error         // why the replica must not continue
	halt   chan struct{} // closed when broken is set
}

func (g *goroutines) fail(err error) {
	g.once.Do(func() { g.broken = err; close(g.halt) })
}

// begin starts all goroutines.
func (r *Replica) begin() *goroutines {
	g := &goroutines{front: make(chan struct{}), stop: make(chan struct{}), disk: make(chan struct{}), halt: make(chan struct{})}
	go func() {
		defer close(g.disk)
		if err := r.disk.run(); err != nil {
			g.fail(err)
		}
	}()
	g.below.Go(func() {
		defer close(r.stopped)
		l := loop{Replica: r, outgoing: map[consensus.Addr]*[]wire.Message{}, watchdog: watchdog{patience: int(r.cfg.DiskTimeout / tickEvery)}, pace: newPace(r.cfg.core(0).HeartbeatTicks)}
		if err := l.run(g.stop); err != nil {
			g.fail(err)
		}
		r.inbox.close()
	})
	above, closeAbove := context.WithCancel(context.Background())
	g.closeAbove = closeAbove
	g.above.Go(func() { r.gateway.run(above) })
	g.above.Go(func() { r.feed.run(above) })
	front, closeFront := context.WithCancel(context.Background())
	g.closeFront = closeFront
	go func() {
		defer close(g.front)
		if r.front == nil {
			return
		}
		if err := r.front.Serve(front, r.frontLn); err != nil {
			g.fail(fmt.Errorf("serve Redis clients: %w", err))
		}
	}()
	return g
}
