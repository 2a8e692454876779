package replica

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/kvd/wal"
)

// Two groups of replicas may have the same name and know each other's addresses: if a
// replica was first started with another list of first members than the others, each may have
// become a cluster. Their logs have entries of the same terms at the same places, so a replica
// of one that followed a leader of the other would acknowledge entries that it does not have. A
// group is therefore identified by its first members: all of them know it from the beginning,
// from their own lists alone. A replica that joins takes it from the first leader that it
// follows. A replica that knows neither, because its members had changed before a version that
// knows groups ran, has no group until it follows a leader that has one; until then it refuses no
// replica, and none refuses it.

// group identifies a group of replicas. The zero value means unknown.
type group [8]byte

// groupBy is the group that these replicas, by ascending id, have made.
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

// findGroup determines, before the first connection, which group this replica belongs to, and
// records it.
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
	if founders := p.core.FirstMembers(); len(founders) > 0 {
		p.group = groupBy(founders)
	}
	if p.group.String() != noted {
		p.noteGroup(p.group)
	}
	return nil
}

// noteGroup writes it to the disk. If that fails, only a safeguard is lost.
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

// joinGroup takes over the leader's group, if this replica knows none. The
// core goroutine calls it at each tick.
func (p *peers) joinGroup(s *Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	told := p.groups[s.Leader]
	g := told.group
	if p.group != (group{}) || g == (group{}) || told.fell || p.refused[s.Leader] || len(s.Members) == 0 || p.stopping.Load() {
		return
	}
	p.group = g
	for id, other := range p.groups {
		if other.group != (group{}) && other.group != g {
			p.refused[id] = true                                                                            // what it sends meanwhile is ignored
			p.transport.Disconnect(peer.Addr(id), p.otherGroup(peer.Remote{ID: id, Index: firstIndex + 1})) // it is refused when it connects again
		}
	}
	p.meets.Go(func() { p.noteGroup(g) }) // the disk may take its time
}

// toldGroup is what a connected replica has reported about its group.
type toldGroup struct {
	group group
	fell  bool // it came back from leading with less than was committed: it does not lead any more
}

// tellsGroup records the group of a connected replica. It refuses one of another
// group than this replica has joined while that one was connecting.
func (p *peers) tellsGroup(who peer.Remote) error {
	s := p.Status()
	p.mu.Lock()
	p.groups[who.ID] = toldGroup{group: who.Group, fell: s.Leader == who.ID && who.Index < s.Commit}
	p.mu.Unlock()
	return p.sameGroup(who)
}

// sameGroup refuses a replica of another group, including one that has nothing yet and was added:
// the log only has the changes of members, and such a replica would apply them to its own list.
// A replica that knows no group, and has a log, refuses one that has nothing and knows a group:
// that one was not started with --join, either.
func (p *peers) sameGroup(who peer.Remote) error {
	own, other := group(p.ownGroup()), group(who.Group)
	_, last := p.position()
	begun := own == (group{}) && last > firstIndex && who.Index <= firstIndex
	if own == other || other == (group{}) || own == (group{}) && !begun {
		return nil
	}
	return p.otherGroup(who)
}

func (p *peers) otherGroup(who peer.Remote) error {
	made := ""
	if first := p.disk.log.Identity().First; first != joins {
		made = fmt.Sprintf(" (replica %d: %s)", p.cfg.ID, first)
	}
	_, last := p.position()
	empty := uint64(0)
	switch {
	case who.Index <= firstIndex && last > firstIndex:
		empty = who.ID
	case who.Index > firstIndex && last <= firstIndex:
		empty = p.cfg.ID
	}
	const page = "(docs/kv-operating.md, Two clusters of one name)"
	if empty > 0 {
		return &peer.HandshakeError{Code: peer.CodeCluster, Reason: fmt.Sprintf(
			"replicas %d and %d belong to two clusters of the name %q, since they were first started with different lists of --peers%s. Replica %d has nothing yet: "+
				"stop it and remove its directory; then start it with --join, if it is to be added (weir kv member add), or, "+
				"as one of the first members, with the list with which the others were first started %s",
			p.cfg.ID, who.ID, p.cfg.Cluster, made, empty, page)}
	}
	return &peer.HandshakeError{Code: peer.CodeCluster, Reason: fmt.Sprintf(
		"replicas %d and %d belong to two clusters of the name %q, since they were first started with different lists of --peers%s. "+
			"Find out which cluster has what you need, stop the replica that is in the wrong one, remove its directory, and start it with the list "+
			"with which the others were first started, or, if their members have changed since, under a new number with --join %s",
		p.cfg.ID, who.ID, p.cfg.Cluster, made, page)}
}
