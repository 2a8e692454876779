package sim

import (
	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// Defects are deliberate bugs of what lies around the core: the shell, its disk
// and its clients. Among them are those of the reference implementation that
// were not in its protocol.
type Defects struct {
	Reorder           bool    // every message is handled by itself: no order on a connection
	StaleClock        bool    // the clock is read before what waits is taken: a pause goes unnoticed
	SmallQueue        int     // a replica with so many messages waiting stops for ever
	DropReplies       float64 // share of replies that a full queue loses
	NeverAskAgain     bool    // clients wait for the first answer, however long
	ProxyOnly         bool    // only one replica, chosen beforehand, answers a client
	SwapReplies       bool    // of two answers to one client the second carries the first one's value
	StaleEvaluation   float64 // share of evaluations that give the one before: a buffer was used again
	EarlyPersisted    bool    // the disk says that it is done when it begins
	LoseSynced        float64 // chance that a crash loses records that were synced
	SnapshotNotSynced bool    // a crash may bring back the snapshot before
	TokenStands       bool    // clients do not move their token when a strong write ends
	CompleteAlone     bool    // clients do not count votes: the leader's word is enough
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

// mislead changes what a client's library gets to see.
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

// dropped reports that a reply does not reach the client.
func (k *conn) dropped() bool {
	d := &k.client.w.Defects
	if d.ProxyOnly && k.replica.id != uint64(1+k.client.session%k.client.w.Config.Replicas) {
		return true
	}
	return k.replica.random.chance(d.DropReplies)
}
