package kv_test

import (
	"encoding/json"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/kv"
)

// A change of the members that is in force is a success whenever it is asked for again:
// who has not got the answer, asks again.
func testMemberChangesMayBeRepeated(t *testing.T, cluster *lab.KV) {
	c := open(t, cluster, kv.Options{})
	ctx := within(t)
	var state struct{ Members []kv.Member }
	testkit.Eventually(t, "a replica tells who the members are", func() bool {
		raw, err := c.Inspect(ctx, 1)
		return err == nil && json.Unmarshal(raw, &state) == nil && len(state.Members) == 3
	})
	for _, m := range state.Members {
		check(t, c.Configure(ctx, kv.MemberChange{Kind: kv.AddLearner, Member: m}), nil)
		check(t, c.Configure(ctx, kv.MemberChange{Kind: kv.Promote, Member: kv.Member{ID: m.ID}}), nil)
	}
	joins := kv.Member{ID: 9, Addr: labtest.Addrs(t, 1)[0]} // it never runs
	for _, g := range []kv.MemberChange{
		{Kind: kv.AddLearner, Member: joins},
		{Kind: kv.Remove, Member: kv.Member{ID: 9}},
		{Kind: kv.Remove, Member: kv.Member{ID: 3}},
	} {
		for range 3 {
			check(t, c.Configure(ctx, g), nil)
		}
	}
	for _, g := range []kv.MemberChange{
		{Kind: kv.AddLearner, Member: joins}, // its number was used
		{Kind: kv.AddLearner, Member: kv.Member{ID: 1, Addr: "elsewhere:1"}},
		{Kind: kv.Remove, Member: kv.Member{ID: 8}},  // it never was
		{Kind: kv.Promote, Member: kv.Member{ID: 3}}, // it has left
	} {
		if err := c.Configure(ctx, g); err == nil {
			t.Errorf("%+v is taken", g)
		}
	}
}
