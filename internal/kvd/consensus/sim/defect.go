package sim

import (
	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// Defects are deliberate bugs outside the core: in the code around it, the disk and the
// clients. They include bugs of the reference implementation outside its protocol.
type Defects struct {
	Reorder           bool    // every message is handled separately: no order on a connection
	StaleClock        bool    // the clock is read before waiting messages are taken: a pause goes unnoticed
	SmallQueue        int     // a replica with so many waiting messages stops permanently
	DropReplies       float64 // share of replies that a full queue drops
	NeverAskAgain     bool    // clients wait for the first answer, however long it takes
	ProxyOnly         bool    // only one replica, chosen beforehand, answers a client
	SwapReplies       bool    // the second of two answers to one client carries the value of the first
	StaleEvaluation   float64 // share of evaluations that return the previous result: a buffer was reused
	EarlyPersisted    bool    // the disk reports completion when it starts
	LoseSynced        float64 // chance that a crash loses records that were flushed
	SnapshotNotSynced bool    // a crash may bring back the previous snapshot
	TokenStands       bool    // clients do not advance their token when a strong write completes
	CompleteAlone     bool    // clients do not count votes: the leader's result is enough
	VotesOfAnyView    bool    // clients count votes of any view
}

// spoil changes what a replica sends to its clients.
func (d *Defects) spoil(sends []consensus.Send) {
	if !d.SwapReplies {
		return
	}
	var last *wire.Message
	for i := range sends {
		m := &sends[i].Message
		if sends[i].To < consensus.FirstClient || m.Kind != wire.Done && (m.Kind != wire.ReadDone || len(m.Data) == 0) {
			continue
		}
		if last != nil {
			m.Data = last.Data
		}
		last = m
	}
}

// mislead changes what a client's library receives.
func (d *Defects) mislead(m *wire.Message, view uint64) {
	switch {
	case d.TokenStands && m.Kind == wire.Done:
		m.View, m.Index = 0, 0
	case d.TokenStands && m.Kind == wire.Spec:
		m.Index = 0
	case d.CompleteAlone && m.Kind == wire.Spec:
		m.Count = 1
	case d.VotesOfAnyView && m.Kind == wire.Vote:
		m.View = view
	}
}

// dropped reports whether a reply is lost.
func (k *conn) dropped() bool {
	d := &k.client.w.Defects
	if d.ProxyOnly && k.replica.id != uint64(1+k.client.session%k.client.w.Config.Replicas) {
		return true
	}
	return k.replica.random.chance(d.DropReplies)
}
