package consensus

import (
	"math/rand/v2"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// absurd returns a message of the engine with fields that make no sense, near values that
// would.
func absurd(rng *rand.Rand, from uint64, c *Core) *pb.Message {
	near := func(v uint64) uint64 {
		switch rng.IntN(8) {
		case 0:
			return 0
		case 1:
			return ^uint64(0) - rng.Uint64N(3)
		case 2:
			return v
		}
		return v + rng.Uint64N(7) - min(v, 3)
	}
	kind := pb.MessageType(rng.IntN(25))
	term, index := near(c.engine.term), near(c.engine.log.lastIndex())
	logTerm, commit := near(c.engine.term), near(c.state.applied)
	hint, reject := near(c.state.applied), rng.IntN(2) == 0
	m := &pb.Message{Type: &kind, From: &from, To: &c.cfg.ID, Term: &term, Index: &index, LogTerm: &logTerm, Commit: &commit, RejectHint: &hint, Reject: &reject}
	for range rng.IntN(4) {
		entry, entryTerm, entryType := near(index+1), near(term), pb.EntryType(rng.IntN(4))
		data := make([]byte, rng.IntN(6))
		for i := range data {
			data[i] = byte(rng.IntN(3))
		}
		m.Entries = append(m.Entries, &pb.Entry{Index: &entry, Term: &entryTerm, Type: &entryType, Data: data})
	}
	if rng.IntN(4) == 0 {
		m.Context = []byte("CampaignTransfer")
	}
	return m
}

// Replicas authenticate each other by a secret, but may have bugs: a message of one may stop
// another with an error, but must never make it panic.
func TestAbsurdMessagesOfTheEngine(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		r := newRig(t, 3, "curp-ho")
		lead := r.leader()
		s := r.session(lead)
		r.deliver(lead, wire.Message{Kind: wire.Strong, Session: s, Seq: 1, Data: []byte("set a 1")})
		r.settle()
		to := r.order[rng.IntN(3)]
		c := r.nodes[to].core
		for range 1 + rng.IntN(4) {
			from := r.others(to)[rng.IntN(2)]
			m := absurd(rng, from, c)
			data, err := proto.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			func() {
				defer func() {
					if p := recover(); p != nil {
						t.Errorf("seed %d, %v: %v: panic: %v", seed, c.engine.role, m, p)
						c.fatal(errEntry)
					}
				}()
				c.Deliver(r.now, Addr(from), &wire.Message{Kind: wire.Raft, Data: data})
				e := c.Take(r.now)
				if e.Ticket != 0 {
					c.Persisted(r.now, e.Ticket)
				}
				c.Take(r.now)
			}()
			if c.out.effects.Fatal != nil {
				break
			}
		}
	}
}
