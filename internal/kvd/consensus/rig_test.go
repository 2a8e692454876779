package consensus

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// words is a machine for tests: "set k v", "get k", "add k v" (appends and
// answers the new value).
type words struct {
	m       map[string]string
	log     []string          // what was applied
	touched map[string]uint64 // what Untouched goes by: keys, and at which revision
}

func (w *words) Apply(_ uint64, _ int64, command []byte) []byte {
	w.log = append(w.log, string(command))
	return run(w.m, command)
}

func (w *words) Advance(uint64, int64) {}
func (w *words) Due() int64            { return 0 }
func (w *words) SetFormat(uint64)      {}

func (w *words) Digest() uint64 {
	d := uint64(1)
	for k, v := range w.m {
		for _, b := range []byte(k + "=" + v) {
			d += mix(uint64(b) + 1)
		}
	}
	return d
}

func (w *words) Evaluate(_ int64, writes [][]byte, command []byte) []byte {
	m := maps.Clone(w.m)
	for _, c := range writes {
		run(m, c)
	}
	return run(m, command)
}

func run(m map[string]string, command []byte) []byte {
	f := strings.Fields(string(command))
	switch f[0] {
	case "set":
		m[f[1]] = f[2]
		return []byte("ok")
	case "add":
		m[f[1]] += f[2]
	}
	return []byte(m[f[1]])
}

func (w *words) Steady(*wire.Footprint) bool { return true }

func (w *words) Untouched(since map[string]uint64) {
	maps.DeleteFunc(since, func(key string, at uint64) bool { return at < w.touched[key] })
}

func (w *words) Footprint(command []byte, f *wire.Footprint) error {
	p := strings.Fields(string(command))
	if len(p) < 2 {
		return fmt.Errorf("bad command %q", command)
	}
	f.Keys = append(f.Keys, p[1])
	f.Write, f.Blind, f.Fixed = p[0] != "get", p[0] == "set", true
	return nil
}

type wordsSnapshot []byte

func (s wordsSnapshot) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(s)
	return int64(n), err
}

func (w *words) Snapshot() io.WriterTo {
	b, err := json.Marshal(w.m)
	if err != nil {
		panic(err)
	}
	return wordsSnapshot(b)
}

func (w *words) Restore(r io.Reader) error {
	m := map[string]string{}
	if err := json.NewDecoder(r).Decode(&m); err != nil {
		return err
	}
	w.m = m
	return nil
}

// rig is a cluster without delays: what is sent arrives, what is written is
// durable, in the order of the replicas. Clients are addresses from FirstClient
// on of the replica they talk to.
type rig struct {
	t     *testing.T
	nodes map[uint64]*rigNode
	order []uint64
	now   Clock
	inbox []wire.Message // what clients got, in order
	cut   map[[2]uint64]bool
	lose  func(from uint64, s *Send) bool // says which messages between replicas are lost
	taken func(id uint64, e *Effects)     // sees what replicas want done
	ships func(from uint64, s Ship) bool  // takes a snapshot's way out of the rig's hands
}

type rigNode struct {
	core     *Core
	words    *words
	disk     []Record
	snapshot []byte
	down     bool
	stuck    bool // its disk does not finish anything
	tickets  []uint64
	syncs    int // that were asked for
}

func newRig(t *testing.T, n int, preset string) *rig {
	t.Helper()
	sw, err := Preset(preset)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, nodes: map[uint64]*rigNode{}, cut: map[[2]uint64]bool{}, now: Clock{Mono: 1e9, Wall: 1e18}}
	var members []Member
	for id := uint64(1); id <= uint64(n); id++ {
		members = append(members, Member{ID: id, Addr: fmt.Sprintf("replica-%d", id)})
		r.order = append(r.order, id)
	}
	for _, id := range r.order {
		r.nodes[id] = &rigNode{}
		// The entry that raises the format would stand among those that tests look at.
		r.start(id, Config{ID: id, Members: members, Switches: sw, Seed: 7, Knows: 1})
	}
	return r
}

func (r *rig) start(id uint64, cfg Config) {
	r.t.Helper()
	n := r.nodes[id]
	n.words = &words{m: map[string]string{}}
	rec := Recovered{Records: func(yield func(Record) error) error {
		for _, x := range n.disk {
			if err := yield(x); err != nil {
				return err
			}
		}
		return nil
	}}
	if n.snapshot != nil {
		rec.Snapshot = bytes.NewReader(n.snapshot)
	}
	c, err := New(cfg, n.words, rec)
	if err != nil {
		r.t.Fatal(err)
	}
	n.core, n.down, n.tickets = c, false, nil
}

// settle lets everything that is under way arrive.
func (r *rig) settle() {
	r.t.Helper()
	for range 10000 {
		busy := false
		for _, id := range r.order {
			n := r.nodes[id]
			if n.down {
				continue
			}
			e := n.core.Take(r.now)
			if e.Fatal != nil {
				r.t.Fatal(e.Fatal)
			}
			if r.taken != nil {
				r.taken(id, &e)
			}
			n.disk = append(n.disk, e.Records...)
			if e.Sync {
				n.syncs++
			}
			if e.Ticket != 0 {
				n.tickets = append(n.tickets, e.Ticket)
			}
			if !n.stuck && len(n.tickets) > 0 {
				n.core.Persisted(r.now, n.tickets[len(n.tickets)-1])
				n.tickets = nil
				busy = true
			}
			if e.Save != nil {
				var b bytes.Buffer
				if _, err := e.Save.WriteTo(&b); err != nil {
					r.t.Fatal(err)
				}
				n.snapshot = b.Bytes()
				n.core.SnapshotSaved(r.now, e.Save.Index, nil)
			}
			for _, s := range e.Ships {
				if r.ships != nil && r.ships(id, s) {
					continue
				}
				to := r.nodes[uint64(s.To)]
				to.snapshot = n.snapshot
				to.core.Install(r.now, Addr(id), &s.Message, bytes.NewReader(n.snapshot))
				n.core.Shipped(r.now, s.To, true)
				busy = true
			}
			for _, s := range e.Sends {
				busy = true
				if s.To >= FirstClient {
					r.inbox = append(r.inbox, s.Message)
					continue
				}
				to := r.nodes[uint64(s.To)]
				if to == nil || to.down || r.cut[[2]uint64{id, uint64(s.To)}] || r.lose != nil && r.lose(id, &s) {
					continue
				}
				var m wire.Message
				if err := m.Decode(s.Message.Append(nil)); err != nil {
					r.t.Fatal(err)
				}
				to.core.Deliver(r.now, Addr(id), &m)
			}
		}
		if !busy {
			return
		}
	}
	r.t.Fatal("the cluster does not come to rest")
}

// tick lets n ticks pass.
func (r *rig) tick(n int) {
	r.t.Helper()
	for range n {
		r.now.Mono += 10e6
		r.now.Wall += 10e6
		for _, id := range r.order {
			if n := r.nodes[id]; !n.down {
				n.core.Tick(r.now)
			}
		}
		r.settle()
	}
}

// leader waits for an opened leader.
func (r *rig) leader() uint64 {
	r.t.Helper()
	for range 300 {
		for _, id := range r.order {
			if n := r.nodes[id]; !n.down && n.core.lead != nil && n.core.lead.open {
				return id
			}
		}
		r.tick(1)
	}
	r.t.Fatal("no leader within 300 ticks")
	return 0
}

const client = FirstClient

func (r *rig) deliver(to uint64, m wire.Message) {
	r.nodes[to].core.Deliver(r.now, client, &m)
}

// take returns, and forgets, what clients got of a kind.
func (r *rig) take(kind wire.Kind) []wire.Message {
	var got, rest []wire.Message
	for _, m := range r.inbox {
		if m.Kind == kind {
			got = append(got, m)
		} else {
			rest = append(rest, m)
		}
	}
	r.inbox = rest
	return got
}

// session registers a session.
func (r *rig) session(leader uint64) uint64 {
	r.t.Helper()
	r.deliver(leader, wire.Message{Kind: wire.Register, Count: 1, Request: 1})
	r.settle()
	got := r.take(wire.ReadDone)
	if len(got) != 1 {
		r.t.Fatalf("register: %v", got)
	}
	return got[0].Revision
}

func (r *rig) one(kind wire.Kind) wire.Message {
	r.t.Helper()
	got := r.take(kind)
	if len(got) != 1 {
		r.t.Fatalf("want one message of kind %d, got %v; others: %v", kind, got, r.inbox)
	}
	return got[0]
}
