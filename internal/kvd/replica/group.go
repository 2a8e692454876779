package replica

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/kvd/wal"
)

// Two groups of replicas may have one name and know each other's addresses: where the first
// start of a replica had another list of first members than that of the others, each may have
// become a cluster. Their logs have entries of the same terms at the same places, so a replica
// of one that heard a leader of the other would acknowledge what it does not have. A group is
// therefore told by its first members: all of them know it from the beginning, from their own
// lists alone. One that joins takes it from the first leader that it follows. A replica of which
// neither is known, since its members had changed before a version that knows groups ran, has
// none until it follows a leader that has; it refuses nobody, and nobody refuses it.

// group names a group of replicas. The zero value is that of one that does not know it.
type group [8]byte

// groupBy is the group that these replicas, by rising id, have made.
func groupBy(founders []uint64) (g group) {
	b := []byte("weir kv founders")
	for _, id := range founders {
		b = binary.BigEndian.AppendUint64(b, id)
	}
	sum := sha256.Sum256(b)
	copy(g[:], sum[:])
	return g
}

func (g group) String() string {
	if g == (group{}) {
		return ""
	}
	return hex.EncodeToString(g[:])
}

// findGroup finds out, before the first connection, which group this replica belongs to, and
// notes it.
func (p *peers) findGroup() error {
	noted, err := p.disk.log.Group()
	if err != nil {
		return fmt.Errorf("directory %s: %w", p.cfg.Dir, err)
	}
	b, err := hex.DecodeString(noted)
	if err != nil || len(b) != len(p.group) && noted != "" {
		return fmt.Errorf("directory %s: file group: %q: want 16 hexadecimal digits; %s", p.cfg.Dir, noted, wal.GroupHint)
	}
	copy(p.group[:], b)
	founders := p.core.Founders()
	untried := p.core.Untried()
	if len(founders) == 0 || noted != "" && !untried {
		return nil
	}
	p.group = groupBy(founders)
	p.fresh = untried && len(founders) > 1 // one alone has a cluster at once
	if !p.fresh {
		p.noteGroup(p.group)
	}
	return nil
}

// noteGroup notes it on the disk. That it fails costs a safeguard, and nothing else.
func (p *peers) noteGroup(g group) {
	if err := p.disk.log.SetGroup(g.String()); err != nil {
		p.cfg.Log.Warn("the group of replicas is not noted", "error", err)
	}
}

// ownGroup is the group that this replica knows to be its own.
func (p *peers) ownGroup() [8]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.group
}

// joinGroup takes the group of the leader for that of this replica, if it knows none, or
// only has a list and nothing of a cluster. The core goroutine calls it at each tick.
func (p *peers) joinGroup(s *Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	told := p.groups[s.Leader]
	g := told.group
	switch {
	case s.Leader == 0 || told.fell || p.refused[s.Leader] || len(s.Members) == 0 || p.stopping.Load():
		return
	case p.fresh && p.core.Untried():
		return
	case p.fresh && g == (group{}):
		g = p.group
	case !p.fresh && (p.group != (group{}) || g == (group{})):
		return
	}
	p.group, p.fresh = g, false
	for id, other := range p.groups {
		if other.group != (group{}) && other.group != g {
			p.refused[id] = true                                    // what comes meanwhile is not heard
			p.transport.Disconnect(peer.Addr(id), p.otherGroup(id)) // it is refused when it connects again
		}
	}
	p.meets.Go(func() { p.noteGroup(g) }) // the disk may take its time
}

// toldGroup is what a replica that is connected says of its group.
type toldGroup struct {
	group group
	fell  bool // it came back from leading with less than was committed: it leads no more
}

// tellsGroup notes the group of a replica that is connected. It refuses one of another
// group than this replica has joined while that one was connecting.
func (p *peers) tellsGroup(who peer.Remote) error {
	s := p.Status()
	p.mu.Lock()
	p.groups[who.ID] = toldGroup{group: who.Group, fell: s.Leader == who.ID && who.Index < s.Commit}
	own := p.group
	p.mu.Unlock()
	if err := p.sameGroup(who); err != nil {
		return err
	}
	if other := group(who.Group); own != other && own != (group{}) && other != (group{}) {
		p.cfg.Log.Warn("a replica is connected though one of the two was first started with another list of members, since that one has nothing yet", "peer", who.ID)
	}
	return nil
}

// sameGroup refuses a replica of another group.
func (p *peers) sameGroup(who peer.Remote) error {
	p.mu.Lock()
	own, other, fresh := p.group, group(who.Group), p.fresh
	p.mu.Unlock()
	switch {
	case own == other, own == (group{}), other == (group{}):
		return nil
	case fresh && who.Index > firstIndex: // it says whether this one is a member
		return nil
	case !fresh && who.Index <= firstIndex && !p.isFirst(who.ID): // let in if it was added
		return nil
	}
	return p.otherGroup(who.ID)
}

// isFirst reports whether a replica is one of the first members. The log tells all others
// who the members are, whatever list they were first started with.
func (p *peers) isFirst(id uint64) bool {
	first, err := firstMembers(p.disk.log.Identity().First)
	return err != nil || slices.ContainsFunc(first, func(m consensus.Member) bool { return m.ID == id })
}

func (p *peers) otherGroup(id uint64) error {
	made := ""
	if first := p.disk.log.Identity().First; first != joins {
		made = fmt.Sprintf(" (replica %d: %s)", p.cfg.ID, first)
	}
	return &peer.HandshakeError{Code: peer.CodeCluster, Reason: fmt.Sprintf(
		"replicas %d and %d belong to two clusters of the name %q, since they were first started with different lists of --peers%s. "+
			"Find out which cluster has what you need, stop the replica that is in the wrong one, remove its directory, and start it with the list "+
			"with which the others were first started, or, if their members have changed since, under a new number with --join. "+
			"If both belong together, remove the file group, which is only a safeguard, from the directories that have the wrong one "+
			"(docs/kv-operating.md, Two clusters of one name)",
		p.cfg.ID, id, p.cfg.Cluster, made)}
}
