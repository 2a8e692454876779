package kvstate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/kvd/kvwire"
)

// TestEvaluateAtTheMoment: at the nanosecond at which something is due it is
// gone for Evaluate, as it is for Apply.
func TestEvaluateAtTheMoment(t *testing.T) {
	s := New(Config{})
	for _, c := range []kvwire.Command{
		{Verb: kvwire.LeaseGrant, TTL: 10},
		{Verb: kvwire.Set, Key: "leased", Lease: 1},
		{Verb: kvwire.Set, Key: "timed", TTL: 10},
		{Verb: kvwire.Set, Key: "both", TTL: 100, Lease: 1},
	} {
		apply(s, c)
	}
	const due = start + 10_000_000
	for _, c := range []struct {
		at   int64
		want int64
	}{{start, 3}, {due - 1, 3}, {due, 0}, {due + 1, 0}, {0, 3}} {
		count := kvwire.Command{Verb: kvwire.Count}
		r, err := kvwire.ParseResult(s.Evaluate(c.at, nil, count.Append(nil)))
		if err != nil || r.Number != c.want {
			t.Errorf("at %d: %d keys, %v, want %d", c.at-start, r.Number, err, c.want)
		}
		for _, key := range []string{"leased", "timed", "both"} {
			get := kvwire.Command{Verb: kvwire.Get, Key: key}
			r, err := kvwire.ParseResult(s.Evaluate(c.at, nil, get.Append(nil)))
			if err != nil || r.Found != (c.want > 0) {
				t.Errorf("at %d: %s found: %v, %v", c.at-start, key, r.Found, err)
			}
		}
		keep := kvwire.Command{Verb: kvwire.LeaseKeep, Lease: 1}
		r, err = kvwire.ParseResult(s.Evaluate(c.at, nil, keep.Append(nil)))
		if err != nil || (r.Code == kvwire.OK) != (c.want > 0) {
			t.Errorf("at %d: renewing the lease: %+v, %v", c.at-start, r, err)
		}
	}
}

// TestEvaluateOverWrites shows what a session sees of its own writes.
func TestEvaluateOverWrites(t *testing.T) {
	s := New(Config{})
	apply(s, kvwire.Command{Verb: kvwire.LeaseGrant, TTL: 1000})
	for _, key := range []string{"b", "d", "f"} {
		apply(s, kvwire.Command{Verb: kvwire.Set, Key: key, Value: []byte("old"), Lease: 1})
	}
	set := func(key string) kvwire.Command {
		return kvwire.Command{Verb: kvwire.Set, Key: key, Value: []byte("new"), Lease: 1}
	}
	all := kvwire.Command{Verb: kvwire.Range}
	backwards := kvwire.Command{Verb: kvwire.Range, Options: kvwire.Reverse}
	held := kvwire.Command{Verb: kvwire.LeaseTTL, Lease: 1, Options: kvwire.KeysOnly}
	remove := kvwire.Command{Verb: kvwire.Delete, Keys: []string{"d"}}
	erase := kvwire.Command{Verb: kvwire.DeleteRange, Key: "c", End: "f"}
	revoke := kvwire.Command{Verb: kvwire.LeaseRevoke, Lease: 1}
	for _, c := range []struct {
		writes  []kvwire.Command
		command kvwire.Command
		want    string // key:value@revision
	}{
		{nil, all, "b:old@2 d:old@3 f:old@4"},
		{[]kvwire.Command{set("a"), set("c"), set("g")}, all, "a:new@0 b:old@2 c:new@0 d:old@3 f:old@4 g:new@0"},
		{[]kvwire.Command{set("g"), set("d"), set("a")}, backwards, "g:new@0 f:old@4 d:new@0 b:old@2 a:new@0"},
		{[]kvwire.Command{set("d"), remove}, all, "b:old@2 f:old@4"},
		{[]kvwire.Command{set("e"), erase}, all, "b:old@2 f:old@4"},
		{[]kvwire.Command{erase, set("e")}, backwards, "f:old@4 e:new@0 b:old@2"},
		{[]kvwire.Command{set("a"), set("e"), remove}, held, "a:@0 b:@0 e:@0 f:@0"},
		{[]kvwire.Command{set("a"), revoke}, all, ""},
		{[]kvwire.Command{revoke, set("a")}, all, ""},
		{nil, all, "b:old@2 d:old@3 f:old@4"},
	} {
		var writes [][]byte
		for i := range c.writes {
			writes = append(writes, c.writes[i].Append(nil))
		}
		r, err := kvwire.ParseResult(s.Evaluate(start, writes, c.command.Append(nil)))
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
	apply(s, kvwire.Command{Verb: kvwire.Set, Key: "k"})
	write := (&kvwire.Command{Verb: kvwire.Set, Key: "k", Value: []byte("v")}).Append(nil)
	for revision := range uint64(4) {
		for _, c := range []kvwire.Command{
			{Verb: kvwire.Set, Key: "k", Cond: kvwire.IfRevision, Revision: revision},
			{Verb: kvwire.Transaction, Guards: []kvwire.Guard{{Key: "k", Revision: revision}}},
		} {
			r, err := kvwire.ParseResult(s.Evaluate(start, [][]byte{write}, c.Append(nil)))
			if err != nil || r.Code != kvwire.NotMet {
				t.Errorf("revision %d: %+v gives %+v, %v", revision, c, r, err)
			}
		}
	}
}

// TestEvaluateTransaction: the commands of a transaction see those before them,
// and nobody else sees any.
func TestEvaluateTransaction(t *testing.T) {
	s := New(Config{})
	increment := kvwire.Command{Verb: kvwire.Increment, Key: "n", Delta: 1}
	c := kvwire.Command{Verb: kvwire.Transaction, Commands: []kvwire.Command{increment, increment, {Verb: kvwire.Count}, {Verb: kvwire.Get, Key: "n"}}}
	for range 2 {
		r, err := kvwire.ParseResult(s.Evaluate(start, [][]byte{increment.Append(nil)}, c.Append(nil)))
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
