package consensus

import (
	"bytes"
	"strings"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// While a replica receives and installs a snapshot, the leader keeps the log behind
// it, however many snapshots it saves meanwhile: the replica goes on from there.
func TestLogStaysWhileASnapshotTravels(t *testing.T) {
	r := newRig(t, 3, "raft")
	lead := r.leader()
	for _, n := range r.nodes {
		n.core.cfg.SnapshotBytes, n.core.cfg.KeepBytes = 4000, 1000
	}
	away := lead%3 + 1
	s, seq := r.session(lead), uint64(0)
	writes := func() {
		for range 100 {
			seq++
			r.deliver(lead, wire.Message{Kind: wire.Strong, Session: s, Seq: seq, Ack: seq - 1, Data: []byte("set k " + strings.Repeat("x", 100))})
			r.settle()
		}
		r.inbox = nil
	}
	type travels struct {
		Ship
		file []byte
	}
	var sent []travels
	r.ships = func(from uint64, s Ship) bool {
		sent = append(sent, travels{s, r.nodes[from].snapshot})
		return true
	}
	r.nodes[away].down = true
	writes()
	r.nodes[away].down = false
	for range 200 {
		if r.tick(1); len(sent) > 0 {
			break
		}
	}
	if len(sent) != 1 {
		t.Fatalf("%d snapshots are sent, want 1", len(sent))
	}
	arrives := func() {
		x := sent[len(sent)-1]
		r.nodes[away].snapshot = x.file
		r.nodes[lead].core.Shipped(r.now, x.To, true)
		writes() // before it is installed
		r.nodes[away].core.Install(r.now, Addr(lead), &x.Message, bytes.NewReader(x.file))
	}
	before := r.nodes[lead].core.Status().Snapshot
	writes()
	if now := r.nodes[lead].core.Status().Snapshot; now <= before {
		t.Fatalf("no newer snapshot than that of entry %d was saved", before)
	}
	arrives()
	r.tick(50)
	if n := len(sent); n != 1 {
		t.Errorf("%d snapshots were sent, want 1: the log behind the first was dropped", n)
	}
	if have, want := r.nodes[away].core.Status().Applied, r.nodes[lead].core.Status().Applied; have != want {
		t.Errorf("the replica has applied entry %d of %d", have, want)
	}
	if n := len(r.nodes[lead].core.lead.holds); n != 0 {
		t.Errorf("%d replicas still hold the log", n)
	}
	writes()
	if n := r.nodes[lead].core.Status().LogBytes; n > 10000 {
		t.Errorf("the log has %d bytes when nobody needs them", n)
	}
}

// The log does not grow without bound for a replica that receives slowly, or has
// received its snapshot and does not come back.
func TestHoldsHaveBounds(t *testing.T) {
	c := assemble(Config{KeepBytes: 100, ShipBytes: 500}, nil)
	c.engine.log = newMemoryLog(1, 1)
	c.engine.log.append(plainEntries(2, 100, 10))
	c.lead = &leadership{holds: holds{}}
	c.lead.holds.sent(2, 30)
	c.snapshots.forget(90)
	if got := c.engine.log.first(); got != 51 {
		t.Errorf("the log begins with entry %d, want 51: 500 bytes stay", got)
	}
	c.lead.holds.sent(2, 70)
	c.snapshots.forget(90)
	if got := c.engine.log.first(); got != 71 {
		t.Errorf("the log begins with entry %d, want the one behind the snapshot", got)
	}
	c.lead.holds.shipped(2, false)
	c.snapshots.forget(90)
	if got := c.engine.log.first(); got != 91 {
		t.Errorf("the log begins with entry %d, want 91: the snapshot has failed", got)
	}
}

func plainEntries(from, to uint64, size int) (list []*pb.Entry) {
	for i := from; i <= to; i++ {
		term := uint64(1)
		list = append(list, &pb.Entry{Index: &i, Term: &term, Data: make([]byte, size)})
	}
	return list
}
