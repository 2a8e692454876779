package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/kvd/wire"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// patience is how long a condition may take that must come true.
const patience = 60 * time.Second

// rig is a cluster in this process, on loopback and real disks.
type rig struct {
	t     *testing.T
	cfg   map[uint64]Config
	nodes map[uint64]*node
	logs  map[uint64]*syncBuffer
}

// node is one replica that runs.
type node struct {
	*Replica
	stop   context.CancelFunc
	ended  chan struct{}
	err    error
	client *redis.Client
}

// syncBuffer is what a replica logged.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// newMember is a replica with addresses that stay its own while it is down.
func newMember(t *testing.T, id uint64) consensus.Member {
	t.Helper()
	addrs := labtest.Addrs(t, 2)
	return consensus.Member{ID: id, Addr: addrs[0], Client: addrs[1]}
}

// newRig makes the configurations of n replicas; change may adapt each.
func newRig(t *testing.T, n int, preset string, change func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, cfg: map[uint64]Config{}, nodes: map[uint64]*node{}, logs: map[uint64]*syncBuffer{}}
	switches, err := consensus.Preset(preset)
	if err != nil {
		t.Fatal(err)
	}
	var members []consensus.Member
	for id := uint64(1); id <= uint64(n); id++ {
		members = append(members, newMember(t, id))
	}
	for _, m := range members {
		c := Config{
			ID: m.ID, Members: members, Dir: filepath.Join(t.TempDir(), fmt.Sprint(m.ID)), Redis: m.Client,
			Switches: switches, Preset: preset, SegmentBytes: 1 << 20, Version: "test", RequestTimeout: patience,
		}
		if change != nil {
			change(&c)
		}
		r.cfg[m.ID] = c
	}
	t.Cleanup(r.close)
	return r
}

// startRig starts all of them and waits for a leader.
func startRig(t *testing.T, n int, preset string, change func(*Config)) *rig {
	t.Helper()
	r := newRig(t, n, preset, change)
	r.startAll()
	r.leader()
	return r
}

func (r *rig) close() {
	for id := range r.nodes {
		r.halt(id)
	}
	if r.t.Failed() {
		for id, log := range r.logs {
			r.t.Logf("log of replica %d:\n%s", id, log)
		}
	}
}

func (r *rig) startAll() {
	r.t.Helper()
	for id := range r.cfg {
		r.start(id)
	}
}

func (r *rig) start(id uint64) *node {
	r.t.Helper()
	n, err := r.tryStart(id)
	if err != nil {
		r.t.Fatalf("start replica %d: %v", id, err)
	}
	return n
}

func (r *rig) tryStart(id uint64) (*node, error) {
	cfg := r.cfg[id]
	if r.logs[id] == nil {
		r.logs[id] = &syncBuffer{}
	}
	cfg.Log = slog.New(slog.NewTextHandler(r.logs[id], &slog.HandlerOptions{Level: slog.LevelDebug}))
	rep, err := Open(cfg)
	if err != nil {
		return nil, err
	}
	n := &node{Replica: rep, ended: make(chan struct{})}
	var ctx context.Context
	ctx, n.stop = context.WithCancel(context.Background())
	go func() {
		defer close(n.ended)
		n.err = rep.Run(ctx)
	}()
	n.client = redis.NewClient(&redis.Options{
		Addr: rep.RedisAddr(), MaxRetries: -1, DialTimeout: patience, ReadTimeout: patience, WriteTimeout: patience, DisableIdentity: true,
	})
	r.nodes[id] = n
	return n, nil
}

// halt stops a replica in order and returns how it ended.
func (r *rig) halt(id uint64) error {
	n := r.nodes[id]
	if n == nil {
		return nil
	}
	_ = n.client.Close()
	n.stop()
	<-n.ended
	delete(r.nodes, id)
	return n.err
}

// ended waits until a replica has stopped by itself and returns why.
func (r *rig) ended(id uint64) error {
	r.t.Helper()
	n := r.nodes[id]
	select {
	case <-n.ended:
	case <-time.After(patience):
		r.t.Fatalf("replica %d goes on", id)
	}
	_ = n.client.Close()
	n.stop()
	delete(r.nodes, id)
	return n.err
}

// leader waits until all replicas that run are ready and returns their leader.
func (r *rig) leader() uint64 {
	r.t.Helper()
	var leader uint64
	testkit.Eventually(r.t, "all replicas are ready and agree", func() bool {
		leader = 0
		for _, n := range r.nodes {
			s := n.Status()
			if s.Ready() != nil || leader != 0 && s.Leader != leader {
				return false
			}
			leader = s.Leader
		}
		return r.nodes[leader] != nil
	})
	return leader
}

// follower is one that is not the leader.
func (r *rig) follower() uint64 {
	r.t.Helper()
	leader := r.leader()
	for id := range r.nodes {
		if id != leader {
			return id
		}
	}
	r.t.Fatal("there is no follower")
	return 0
}

func (r *rig) set(id uint64, key, value string) {
	r.t.Helper()
	if err := r.nodes[id].client.Set(r.t.Context(), key, value, 0).Err(); err != nil {
		r.t.Fatalf("SET %s at replica %d: %v", key, id, err)
	}
}

// insist is set where requests are given so little time that a busy machine may
// need several.
func (r *rig) insist(id uint64, key, value string) {
	r.t.Helper()
	testkit.Eventually(r.t, fmt.Sprintf("SET %s at replica %d", key, id), func() bool {
		return r.nodes[id].client.Set(r.t.Context(), key, value, 0).Err() == nil
	})
}

// want checks what a strong read gives at a replica; "" is no such key.
func (r *rig) want(id uint64, key, value string) {
	r.t.Helper()
	got, err := r.nodes[id].client.Get(r.t.Context(), key).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		r.t.Fatalf("GET %s at replica %d: %v", key, id, err)
	}
	if got != value {
		r.t.Errorf("GET %s at replica %d: %q, want %q", key, id, got, value)
	}
}

// converged waits until all replicas have applied the same.
func (r *rig) converged() {
	r.t.Helper()
	digests := map[uint64]uint64{}
	testkit.Eventually(r.t, "all replicas have applied the same", func() bool {
		revisions := map[uint64]bool{}
		for id, n := range r.nodes {
			if err := n.inLoop(func(consensus.Clock) { revisions[n.core.Revision()], digests[id] = true, n.store.Digest() }); err != nil {
				r.t.Fatal(err)
			}
		}
		return len(revisions) == 1
	})
	for _, d := range digests {
		for _, other := range digests {
			if d != other {
				r.t.Fatalf("the states differ: %v", digests)
			}
		}
	}
}

// native is a client of the native protocol.
type native struct {
	*peer.Conn
	mu  sync.Mutex
	got []wire.Message
}

func (r *rig) native(id uint64) *native {
	r.t.Helper()
	c := &native{}
	conn, err := peer.Dial(r.t.Context(), r.nodes[id].Addr(), peer.ClientOptions{
		Cluster: "weir", Secret: r.cfg[id].Secret, HandshakeTimeout: patience, SilentAfter: patience,
		Receive: func(ms []wire.Message) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.got = append(c.got, ms...)
		},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	c.Conn = conn
	r.t.Cleanup(func() { _ = conn.Close() })
	return c
}

// await waits for a message and takes it.
func (c *native) await(t *testing.T, what string, match func(*wire.Message) bool) wire.Message {
	t.Helper()
	var found wire.Message
	testkit.Eventually(t, what, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i := range c.got {
			if match(&c.got[i]) {
				found = c.got[i]
				c.got = append(c.got[:i:i], c.got[i+1:]...)
				return true
			}
		}
		return false
	})
	return found
}

// ask sends a request to a replica and waits for the answer, or for the end of the
// connection.
func (r *rig) ask(id uint64, m wire.Message) (answer wire.Message, err error) {
	r.t.Helper()
	c := r.native(id)
	defer func() { _ = c.Close() }()
	m.Request = 1
	if _, err := c.Send([]wire.Message{m}); err != nil {
		return answer, err
	}
	testkit.Eventually(r.t, fmt.Sprintf("replica %d answers %s", id, m.Kind), func() bool {
		ended := c.Err()
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, got := range c.got {
			if got.Request == m.Request {
				answer = got
				return true
			}
		}
		err = ended
		return err != nil
	})
	return answer, err
}

// configure asks the leader for a change of the members until it is in force.
func (r *rig) configure(change consensus.Change) {
	r.t.Helper()
	testkit.Eventually(r.t, fmt.Sprintf("the change of members %+v", change), func() bool {
		leader := r.leader()
		m, err := r.ask(leader, wire.Message{Kind: wire.Configure, Data: change.Append(nil)})
		// It is not caught up yet, or leads no more; then the next one may have made
		// the change already, of which the answer is lost.
		return err == nil && m.Kind == wire.ReadDone || r.changed(change)
	})
}

// changed reports whether a change of the members is in force at the leader.
func (r *rig) changed(change consensus.Change) bool {
	for _, m := range r.nodes[r.leader()].Status().Members {
		if m.ID == change.Member.ID {
			return change.Kind == consensus.AddLearner || change.Kind == consensus.Promote && !m.Learner
		}
	}
	return change.Kind == consensus.Remove
}
