package wire

import (
	"errors"
	"fmt"
)

// Member is a replica of the cluster.
type Member struct {
	ID      uint64
	Addr    string // where replicas and clients reach it
	Learner bool   // receives the log, does not vote
	Client  string // where Redis clients reach it, may be empty
}

// MemberVerb is what a MemberChange does.
type MemberVerb uint8

// Verbs of a MemberChange.
const (
	AddLearner MemberVerb = iota + 1 // Member receives the log and does not vote
	Promote                          // the learner Member.ID votes
	Remove                           // Member.ID leaves
	Replace                          // the learner Member.ID votes and Old leaves, in one step
	Transfer                         // Member.ID shall lead: no change of the members
)

// MemberChange is a request to change the members.
type MemberChange struct {
	Kind   MemberVerb
	Member Member
	Old    uint64
}

// maxReplica is the largest id of a replica: above are clients.
const maxReplica = 1<<32 - 1

// Append encodes the change for a Configure message.
func (g MemberChange) Append(b []byte) []byte {
	b = append(b, byte(g.Kind))
	b = appendUint(b, g.Old)
	b = appendUint(b, g.Member.ID)
	b = appendString(b, g.Member.Addr)
	return appendString(b, g.Member.Client)
}

// ParseMemberChange is the inverse of MemberChange.Append.
func ParseMemberChange(b []byte) (MemberChange, error) {
	r := reader{b: b}
	g := MemberChange{Kind: MemberVerb(r.byte()), Old: r.uint()}
	g.Member = Member{ID: r.uint(), Addr: r.string(), Client: r.string()}
	if err := r.end(); err != nil {
		return MemberChange{}, fmt.Errorf("change of members: %w", err)
	}
	if g.Kind < AddLearner || g.Kind > Transfer {
		return MemberChange{}, errors.New("change of members: unknown verb")
	}
	if g.Member.ID == 0 || g.Member.ID > maxReplica {
		return MemberChange{}, fmt.Errorf("change of members: replica id %d: want 1 to %d", g.Member.ID, uint64(maxReplica))
	}
	return g, nil
}
