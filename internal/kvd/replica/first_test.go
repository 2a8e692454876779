package replica

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/kvd/consensus"
)

func TestFirstMembersAreReadAsWritten(t *testing.T) {
	for _, members := range []string{
		"1=127.0.0.1:7401",
		"1=10.0.0.1:7401/6379,2=10.0.0.2:7401/6379,3=db.example:7401/redis.example:6380",
	} {
		want, err := ParseMembers(members)
		if err != nil {
			t.Fatal(err)
		}
		c := Config{Members: want}
		got, err := firstMembers(c.first())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", members, diff)
		}
	}
	c := Config{Join: true, Members: []consensus.Member{{ID: 1, Addr: "127.0.0.1:1"}}}
	if got, err := firstMembers(c.first()); err != nil || len(got) > 0 {
		t.Errorf("a replica that joins: %v, %v", got, err)
	}
}
