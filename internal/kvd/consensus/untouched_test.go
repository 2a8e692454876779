package consensus

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// A leader puts what it knows in the place of what a transaction wants of missing keys: of
// what is applied, and of what is on its way there.
func TestLeaderDecidesOnMissingKeys(t *testing.T) {
	c := &Core{}
	c.state.machine = &words{touched: map[string]uint64{"before": 5, "after": 6, "twice": 5}}
	l := &leadership{c: c, byOp: map[opID]*leadOp{}}
	for i, command := range []string{"set flying v", "set v within", "nonsense"} {
		l.byOp[opID{1, uint64(i)}] = &leadOp{op: op{command: []byte(command)}}
	}
	const since = wire.Untouched | 5
	guards := func(revisions ...uint64) []byte {
		c := wire.Command{Verb: wire.Transaction, Commands: []wire.Command{{Verb: wire.Set, Key: "k"}}}
		for i, key := range []string{"before", "after", "flying", "within", "there", "unknown", "twice", "twice"} {
			c.Guards = append(c.Guards, wire.Guard{Key: key, Revision: revisions[i]})
		}
		return c.Append(nil)
	}
	o := &leadOp{op: op{command: guards(since, since, since, since, 7, wire.Never, since, wire.Untouched|4)}, fast: true}
	sent := bytes.Clone(o.command)
	was := o.command
	l.decide(o)
	if diff := cmp.Diff(guards(0, wire.Never, wire.Never, 0, 7, wire.Never, wire.Never, wire.Never), o.command); diff != "" {
		t.Errorf("the transaction (-want +got):\n%s", diff)
	}
	if o.fast {
		t.Error("what witnesses have seen otherwise is told before the commit")
	}
	if !bytes.Equal(was, sent) {
		t.Error("what the client has sent was changed")
	}
	for _, command := range [][]byte{nil, guards(0, 0, 0, 0, 7, wire.Never, 0, 0), {byte(wire.Transaction)}, []byte("set k v")} {
		o := &leadOp{op: op{command: command}, fast: true}
		if l.decide(o); !bytes.Equal(o.command, command) || !o.fast {
			t.Errorf("%q became %q, fast %v", command, o.command, o.fast)
		}
	}
}
