package state

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// TestEvaluateAtTheMoment: at the nanosecond at which something is due it is
// gone for Evaluate, as it is for Apply.
func TestEvaluateAtTheMoment(t *testing.T) {
	s := New(Config{})
	for _, c := range []wire.Command{
		{Verb: wire.LeaseGrant, TTL: 10},
		{Verb: wire.Set, Key: "leased", Lease: 1},
		{Verb: wire.Set, Key: "timed", TTL: 10},
		{Verb: wire.Set, Key: "both", TTL: 100, Lease: 1},
	} {
		apply(s, c)
	}
	const due = start + 10_000_000
	for _, c := range []struct {
		at   int64
		want int64
	}{{start, 3}, {due - 1, 3}, {due, 0}, {due + 1, 0}, {0, 3}} {
		count := wire.Command{Verb: wire.Count}
		r, err := wire.ParseResult(s.Evaluate(c.at, nil, count.Append(nil)))
		if err != nil || r.Number != c.want {
			t.Errorf("at %d: %d keys, %v, want %d", c.at-start, r.Number, err, c.want)
		}
		for _, key := range []string{"leased", "timed", "both"} {
			get := wire.Command{Verb: wire.Get, Key: key}
			r, err := wire.ParseResult(s.Evaluate(c.at, nil, get.Append(nil)))
			if err != nil || r.Found != (c.want > 0) {
				t.Errorf("at %d: %s found: %v, %v", c.at-start, key, r.Found, err)
			}
		}
		keep := wire.Command{Verb: wire.LeaseKeep, Lease: 1}
		r, err = wire.ParseResult(s.Evaluate(c.at, nil, keep.Append(nil)))
		if err != nil || (r.Code == wire.OK) != (c.want > 0) {
			t.Errorf("at %d: renewing the lease: %+v, %v", c.at-start, r, err)
		}
	}
}

// TestEvaluateOverWrites shows what a session sees of its own writes.
func TestEvaluateOverWrites(t *testing.T) {
	s := New(Config{})
	apply(s, wire.Command{Verb: wire.LeaseGrant, TTL: 1000})
	for _, key := range []string{"b", "d", "f"} {
		apply(s, wire.Command{Verb: wire.Set, Key: key, Value: []byte("old"), Lease: 1})
	}
	set := func(key string) wire.Command {
		return wire.Command{Verb: wire.Set, Key: key, Value: []byte("new"), Lease: 1}
	}
	all := wire.Command{Verb: wire.Range}
	backwards := wire.Command{Verb: wire.Range, Options: wire.Reverse}
	held := wire.Command{Verb: wire.LeaseTTL, Lease: 1, Options: wire.KeysOnly}
	remove := wire.Command{Verb: wire.Delete, Keys: []string{"d"}}
	erase := wire.Command{Verb: wire.DeleteRange, Key: "c", End: "f"}
	revoke := wire.Command{Verb: wire.LeaseRevoke, Lease: 1}
	for _, c := range []struct {
		writes  []wire.Command
		command wire.Command
		want    string // key:value@revision
	}{
		{nil, all, "b:old@2 d:old@3 f:old@4"},
		{[]wire.Command{set("a"), set("c"), set("g")}, all, "a:new@0 b:old@2 c:new@0 d:old@3 f:old@4 g:new@0"},
		{[]wire.Command{set("g"), set("d"), set("a")}, backwards, "g:new@0 f:old@4 d:new@0 b:old@2 a:new@0"},
		{[]wire.Command{set("d"), remove}, all, "b:old@2 f:old@4"},
		{[]wire.Command{set("e"), erase}, all, "b:old@2 f:old@4"},
		{[]wire.Command{erase, set("e")}, backwards, "f:old@4 e:new@0 b:old@2"},
		{[]wire.Command{set("a"), set("e"), remove}, held, "a:@0 b:@0 e:@0 f:@0"},
		{[]wire.Command{set("a"), revoke}, all, ""},
		{[]wire.Command{revoke, set("a")}, all, ""},
		{nil, all, "b:old@2 d:old@3 f:old@4"},
	} {
		var writes [][]byte
		for i := range c.writes {
			writes = append(writes, c.writes[i].Append(nil))
		}
		r, err := wire.ParseResult(s.Evaluate(start, writes, c.command.Append(nil)))
		var got []string
		for _, p := range r.Pairs {
			got = append(got, fmt.Sprintf("%s:%s@%d", p.Key, p.Value, p.Revision))
		}
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%+v over %+v: %v, %v, want %s", c.command, c.writes, got, err, c.want)
		}
	}
}

// TestEvaluateRevisions: what has no revision yet matches none, not even a
// guess of the right one.
func TestEvaluateRevisions(t *testing.T) {
	s := New(Config{})
	apply(s, wire.Command{Verb: wire.Set, Key: "k"})
	write := (&wire.Command{Verb: wire.Set, Key: "k", Value: []byte("v")}).Append(nil)
	for revision := range uint64(4) {
		for _, c := range []wire.Command{
			{Verb: wire.Set, Key: "k", Cond: wire.IfRevision, Revision: revision},
			{Verb: wire.Transaction, Guards: []wire.Guard{{Key: "k", Revision: revision}}},
		} {
			r, err := wire.ParseResult(s.Evaluate(start, [][]byte{write}, c.Append(nil)))
			if err != nil || r.Code != wire.NotMet {
				t.Errorf("revision %d: %+v gives %+v, %v", revision, c, r, err)
			}
		}
	}
}

// TestEvaluateTransaction checks that commands of a transaction see those before them, and that
// no other client sees any.
func TestEvaluateTransaction(t *testing.T) {
	s := New(Config{})
	increment := wire.Command{Verb: wire.Increment, Key: "n", Delta: 1}
	c := wire.Command{Verb: wire.Transaction, Commands: []wire.Command{increment, increment, {Verb: wire.Count}, {Verb: wire.Get, Key: "n"}}}
	for range 2 {
		r, err := wire.ParseResult(s.Evaluate(start, [][]byte{increment.Append(nil)}, c.Append(nil)))
		if err != nil || len(r.Results) != 4 {
			t.Fatalf("%+v, %v", r, err)
		}
		if r.Results[0].Number != 2 || r.Results[1].Number != 3 || r.Results[2].Number != 1 || string(r.Results[3].Value) != "3" {
			t.Errorf("%+v", r.Results)
		}
	}
	if s.Len() != 0 {
		t.Error("evaluating changed the store")
	}
}
