package wire

import (
	"errors"
	"fmt"
)

// Member is a replica of the cluster.
type Member struct {
	ID      uint64
	Addr    string // where replicas and clients reach it
	Learner bool   // it receives the log and does not vote
	Client  string // where Redis clients reach it, may be empty
}

// MemberVerb is what a MemberChange does.
type MemberVerb uint8

// Verbs of a MemberChange.
const (
	AddLearner MemberVerb = iota + 1 // Member receives the log and does not vote
	Promote                          // the learner Member.ID becomes a voter
	Remove                           // Member.ID leaves
	Replace                          // the learner Member.ID becomes a voter and Old leaves, in one step
	Transfer                         // Member.ID takes over leadership: no change of members
)

// MemberChange is a request to change the members.
type MemberChange struct {
	Kind   MemberVerb
	Member Member
	Old    uint64
	// Force lets a member leave (Remove, Replace) although the leader cannot reach a majority
	// of the remaining voters: then the cluster serves no client until enough of them are back.
	Force bool
}

const forced = 0x80 // bit in the byte of the verb

// maxReplica is the largest id of a replica. Larger ids are clients.
const maxReplica = 1<<32 - 1

// Append encodes the change for a Configure message.
func (g MemberChange) Append(b []byte) []byte {
	verb := byte(g.Kind)
	if g.Force {
		verb |= forced
	}
	b = append(b, verb)
	b = appendUint(b, g.Old)
	b = appendUint(b, g.Member.ID)
	b = appendString(b, g.Member.Addr)
	return appendString(b, g.Member.Client)
}

// ParseMemberChange is the inverse of MemberChange.Append.
func ParseMemberChange(b []byte) (MemberChange, error) {
	r := reader{b: b}
	verb := r.byte()
	g := MemberChange{Kind: MemberVerb(verb &^ forced), Force: verb&forced != 0, Old: r.uint()}
	g.Member = Member{ID: r.uint(), Addr: r.string(), Client: r.string()}
	if err := r.end(); err != nil {
		return MemberChange{}, fmt.Errorf("change of members: %w", err)
	}
	if g.Kind < AddLearner || g.Kind > Transfer || g.Force && g.Kind != Remove && g.Kind != Replace {
		return MemberChange{}, errors.New("change of members: unknown verb")
	}
	if g.Member.ID == 0 || g.Member.ID > maxReplica {
		return MemberChange{}, fmt.Errorf("change of members: replica id %d: want 1 to %d", g.Member.ID, uint64(maxReplica))
	}
	return g, nil
}
