package wire

import (
	"bytes"
	"strings"
	"testing"
)

var someMemberChanges = []MemberChange{
	{Kind: AddLearner, Member: Member{ID: 4, Addr: "10.0.0.4:7000", Client: "10.0.0.4:6379"}},
	{Kind: AddLearner, Member: Member{ID: maxReplica, Addr: strings.Repeat("a", 300)}},
	{Kind: Promote, Member: Member{ID: 4}},
	{Kind: Remove, Member: Member{ID: 1}},
	{Kind: Replace, Member: Member{ID: 4}, Old: 3},
	{Kind: Transfer, Member: Member{ID: 2}},
	{Kind: Remove, Member: Member{ID: 1}, Force: true},
	{Kind: Replace, Member: Member{ID: 4}, Old: 3, Force: true},
}

func TestMemberChangeRoundTrip(t *testing.T) {
	for _, g := range someMemberChanges {
		b := g.Append(nil)
		if got, err := ParseMemberChange(b); err != nil || got != g {
			t.Errorf("%+v is read as %+v, %v", g, got, err)
		}
		for n := range b {
			if got, err := ParseMemberChange(b[:n]); err == nil {
				t.Errorf("the first %d of %d bytes: %+v, want an error", n, len(b), got)
			}
		}
		if got, err := ParseMemberChange(append(b, 0)); err == nil {
			t.Errorf("a byte more: %+v, want an error", got)
		}
	}
}

func TestMemberChangeRefusals(t *testing.T) {
	for _, c := range []struct {
		g    MemberChange
		want string
	}{
		{MemberChange{Member: Member{ID: 1}}, "unknown verb"},
		{MemberChange{Kind: Transfer + 1, Member: Member{ID: 1}}, "unknown verb"},
		{MemberChange{Kind: Promote, Member: Member{ID: 1}, Force: true}, "unknown verb"},
		{MemberChange{Kind: Remove}, "replica id 0"},
		{MemberChange{Kind: Remove, Member: Member{ID: maxReplica + 1}}, "replica id 4294967296"},
	} {
		got, err := ParseMemberChange(c.g.Append(nil))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.g, err, c.want)
		}
		if got != (MemberChange{}) {
			t.Errorf("%+v: a change comes with the error: %+v", c.g, got)
		}
	}
}

func FuzzParseMemberChange(f *testing.F) {
	for _, g := range someMemberChanges {
		f.Add(g.Append(nil))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := ParseMemberChange(b)
		if err != nil {
			return
		}
		if g.Kind < AddLearner || g.Kind > Transfer || g.Member.ID == 0 || g.Member.ID > maxReplica {
			t.Errorf("%q is accepted: %+v", b, g)
		}
		if again := g.Append(nil); !bytes.Equal(again, b) {
			t.Errorf("%q decodes and encodes as %q", b, again)
		}
	})
}
