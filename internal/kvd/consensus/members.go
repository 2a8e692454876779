package consensus

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// members are the members of the cluster as of the last applied change.
type members struct {
	list  []Member // by rising id
	conf  *pb.ConfState
	index uint64 // log entry of the last change
	known uint64 // the value of index after a restart; not in snapshots

	// gone has the ids of former members, ascending. None of them can join again: a vote that
	// was given under such an id may still count somewhere, messages may still be in flight,
	// and its old disk may be started. It grows by a few bytes with each removal, which only
	// operators do.
	gone []uint64
}

func (m *members) init(first []Member) {
	m.list = slices.Clone(first)
	m.sort()
	m.conf = &pb.ConfState{}
	for _, p := range m.list {
		m.conf.Voters = append(m.conf.Voters, p.ID)
	}
}

func (m *members) sort() {
	slices.SortFunc(m.list, func(a, b Member) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
}

// relocate sets the addresses of members that an operator has configured. The address for Redis
// clients stays if the operator names none.
func (m *members) relocate(told []Member) {
	m.list = slices.Clone(m.list)
	for i := range m.list {
		for _, t := range told {
			if p := &m.list[i]; p.ID == t.ID {
				p.Addr, p.Client = t.Addr, cmp.Or(t.Client, p.Client)
			}
		}
	}
}

func (m *members) get(id uint64) (Member, bool) {
	for _, p := range m.list {
		if p.ID == id {
			return p, true
		}
	}
	return Member{}, false
}

func (m *members) voters() []uint64 { return m.conf.GetVoters() }
func (m *members) joint() bool      { return len(m.conf.GetVotersOutgoing()) > 0 }
func (m *members) votes(id uint64) bool {
	return slices.Contains(m.conf.GetVoters(), id)
}

// left reports whether a replica was a member and no longer is.
func (m *members) left(id uint64) bool {
	_, found := slices.BinarySearch(m.gone, id)
	return found
}

// leaving returns the voters that will be no members when the change in progress has ended.
func (m *members) leaving() (all []uint64) {
	for _, id := range m.conf.GetVotersOutgoing() {
		if m.left(id) {
			all = append(all, id)
		}
	}
	return all
}

// unused returns an id that no replica has had.
func (m *members) unused() uint64 {
	most := uint64(0)
	for _, p := range m.list {
		most = max(most, p.ID)
	}
	for _, id := range m.gone {
		most = max(most, id)
	}
	return most + 1
}

// maxVoters is the largest number of voters: more would add costs without need.
const maxVoters = 7

func majority(n int) int { return n/2 + 1 }

// recoverAt returns how many pools of a majority must have an operation that may have
// completed. See wire.FastQuorum.
func recoverAt(n int) int { return wire.FastQuorum(n) + majority(n) - n }

// Changes of members are defined in package wire, so that clients can use them.
type (
	Member     = wire.Member
	Change     = wire.MemberChange
	ChangeKind = wire.MemberVerb
)

// Kinds of changes.
const (
	AddLearner = wire.AddLearner
	Promote    = wire.Promote
	Remove     = wire.Remove
	Replace    = wire.Replace
	Transfer   = wire.Transfer
)

func appendMember(b []byte, m Member) []byte {
	b = binary.AppendUvarint(b, m.ID)
	b = appendBool(b, m.Learner)
	b = binary.AppendUvarint(b, uint64(len(m.Addr)))
	b = append(b, m.Addr...)
	b = binary.AppendUvarint(b, uint64(len(m.Client)))
	return append(b, m.Client...)
}

func readMember(r *reader) Member {
	return Member{ID: r.uvarint(), Learner: r.byte() != 0, Addr: r.string(), Client: r.string()}
}

// done reports whether the members in force are as the change asks for: then the request is a
// repetition by a client that has not received the answer.
func (m *members) done(g Change) bool {
	p, known := m.get(g.Member.ID)
	switch g.Kind {
	case AddLearner:
		return known && p.Addr == g.Member.Addr && p.Client == g.Member.Client
	case Promote:
		return known && !p.Learner
	case Remove:
		return m.left(g.Member.ID)
	case Replace:
		return known && !p.Learner && m.left(g.Old)
	}
	return false
}

// check returns an error if the change makes no sense for the members in force.
func (m *members) check(g Change) error {
	p, known := m.get(g.Member.ID)
	switch g.Kind {
	case AddLearner:
		if known {
			return fmt.Errorf("replica %d is a member already, at %s", g.Member.ID, atAddresses(p))
		}
		if m.left(g.Member.ID) {
			return fmt.Errorf("replica %d was a member and has left: its number is never used again; give the new replica another, such as %d", g.Member.ID, m.unused())
		}
		if g.Member.Addr == "" {
			return errors.New("a new member needs an address")
		}
	case Promote, Replace:
		if !known || !p.Learner {
			return fmt.Errorf("replica %d is not a learner", g.Member.ID)
		}
		if g.Kind == Promote && len(m.voters()) >= maxVoters {
			return fmt.Errorf("there are %d voters, which is the most", maxVoters)
		}
		if g.Kind == Replace && !m.votes(g.Old) {
			return fmt.Errorf("replica %d is not a voter", g.Old)
		}
	case Remove:
		if !known {
			return fmt.Errorf("replica %d is not a member", g.Member.ID)
		}
		if !p.Learner && len(m.voters()) == 1 {
			return errors.New("the last voter cannot leave")
		}
	case Transfer:
		if !known || p.Learner {
			return fmt.Errorf("replica %d is not a voter", g.Member.ID)
		}
	}
	return nil
}

// atAddresses formats the addresses of a member as weir kv member add takes them.
func atAddresses(m Member) string {
	if m.Client == "" {
		return m.Addr
	}
	return m.Addr + " and, for Redis clients, " + m.Client
}

// confChange returns g in the engine's form.
func confChange(g Change) *pb.ConfChangeV2 {
	single := func(t pb.ConfChangeType, id uint64) *pb.ConfChangeSingle {
		return &pb.ConfChangeSingle{Type: t.Enum(), NodeId: &id}
	}
	cc := &pb.ConfChangeV2{Context: g.Append(nil)}
	switch g.Kind {
	case AddLearner:
		cc.Changes = append(cc.Changes, single(pb.ConfChangeAddLearnerNode, g.Member.ID))
	case Promote:
		cc.Changes = append(cc.Changes, single(pb.ConfChangeAddNode, g.Member.ID))
	case Remove:
		cc.Changes = append(cc.Changes, single(pb.ConfChangeRemoveNode, g.Member.ID))
	case Replace:
		cc.Changes = append(cc.Changes, single(pb.ConfChangeAddNode, g.Member.ID), single(pb.ConfChangeRemoveNode, g.Old))
	case Transfer:
	}
	return cc
}

// removesLastVoter reports whether a committed change would remove the last voter. No leader that knows the
// members proposes such a change.
func (m *members) removesLastVoter(cc *pb.ConfChangeV2) bool {
	g, err := wire.ParseMemberChange(cc.GetContext())
	return err == nil && g.Kind == Remove && len(m.voters()) == 1 && m.votes(g.Member.ID)
}

// applied puts a committed change into force.
func (m *members) applied(index uint64, conf *pb.ConfState, context []byte) error {
	m.conf, m.index = conf, index
	if len(context) == 0 {
		return nil // the engine leaves a joint configuration
	}
	g, err := wire.ParseMemberChange(context)
	if err != nil {
		return err
	}
	switch g.Kind {
	case AddLearner:
		p := g.Member
		p.Learner = true
		m.list = append(slices.DeleteFunc(slices.Clone(m.list), func(o Member) bool { return o.ID == p.ID }), p)
		m.sort()
	case Promote, Replace:
		m.list = slices.Clone(m.list)
		for i := range m.list {
			if m.list[i].ID == g.Member.ID {
				m.list[i].Learner = false
			}
		}
		if g.Kind == Replace {
			m.remove(g.Old)
		}
	case Remove:
		m.remove(g.Member.ID)
	case Transfer:
	}
	return nil
}

func (m *members) remove(id uint64) {
	m.list = slices.DeleteFunc(slices.Clone(m.list), func(p Member) bool { return p.ID == id })
	if at, found := slices.BinarySearch(m.gone, id); !found {
		m.gone = slices.Insert(m.gone, at, id)
	}
}

// dedupe removes duplicates: earlier versions could list a replica twice, if it was started as
// one of the first members and then added.
func (m *members) dedupe() {
	n := len(m.list)
	m.list = slices.CompactFunc(m.list, func(a, b Member) bool { return a.ID == b.ID })
	if len(m.list) == n {
		return
	}
	for i := range m.list {
		m.list[i].Learner = !m.votes(m.list[i].ID)
	}
}

// digest returns a digest of the ids and roles of the members.
func (m *members) digest() uint64 {
	d := uint64(0)
	for i, part := range [...][]uint64{m.conf.GetVoters(), m.conf.GetVotersOutgoing(), m.conf.GetLearners(), m.conf.GetLearnersNext()} {
		for _, id := range part {
			d += mix(id<<2 | uint64(i))
		}
	}
	return max(d, 1)
}

func (m *members) append(b []byte) ([]byte, error) {
	conf, err := proto.MarshalOptions{Deterministic: true}.Marshal(m.conf)
	if err != nil {
		return nil, fmt.Errorf("encode the configuration: %w", err)
	}
	b = binary.AppendUvarint(b, m.index)
	b = binary.AppendUvarint(b, uint64(len(conf)))
	b = append(b, conf...)
	b = binary.AppendUvarint(b, uint64(len(m.list)))
	for _, p := range m.list {
		b = appendMember(b, p)
	}
	b = binary.AppendUvarint(b, uint64(len(m.gone)))
	return appendUvarints(b, m.gone...), nil
}

func readMembers(r *reader) (members, error) {
	m := members{index: r.uvarint(), conf: &pb.ConfState{}}
	m.known = m.index // who reads this has it on disk
	if err := proto.Unmarshal(r.bytes(), m.conf); err != nil {
		return members{}, fmt.Errorf("configuration: %w", err)
	}
	n := r.uvarint()
	for i := uint64(0); i < n && !r.bad; i++ {
		m.list = append(m.list, readMember(r))
	}
	m.dedupe()
	n = r.uvarint()
	for i := uint64(0); i < n && !r.bad; i++ {
		id := r.uvarint()
		if last := len(m.gone) - 1; last >= 0 && id <= m.gone[last] {
			return members{}, fmt.Errorf("members that left: replica %d stands after %d", id, m.gone[last])
		}
		m.gone = append(m.gone, id)
	}
	if r.bad {
		return members{}, fmt.Errorf("members: %w", errEntry)
	}
	return m, nil
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendUvarints(b []byte, values ...uint64) []byte {
	for _, v := range values {
		b = binary.AppendUvarint(b, v)
	}
	return b
}
