package sim

import (
	"fmt"
	"strings"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// operation is an operation of a client with its outcome. Times are steps of the world, all
// different.
type operation struct {
	id      uint64 // from 1; a write carries it in a field that its verb ignores
	session int    // index in World.sessions
	order   int    // its number in the session's program
	write   bool
	weak    bool
	wait    bool // waits until the session's earlier writes are committed
	command wire.Command
	bytes   []byte
	foot    wire.Footprint

	called   uint64
	returned uint64 // 0: never
	failure  string // why the session gave up, "" if it did not
	refused  bool   // the failure says that nothing happened
	result   []byte // encoded, without the write's own revision
	revision uint64 // of a read: the position at which it was answered; of a write: its revision in the log
	index    uint64 // of the token
	view     uint64
	fast     bool
}

// done reports whether the operation was answered.
func (o *operation) done() bool { return o.returned != 0 && o.failure == "" }

func (o *operation) String() string {
	level, what := "strong", "read"
	if o.weak {
		level = "weak"
	}
	if o.write {
		what = "write"
	}
	if o.wait {
		what = "wait"
	}
	s := fmt.Sprintf("#%d session %d.%d %s %s %s", o.id, o.session, o.order, level, what, describeCommand(&o.command))
	if o.returned == 0 {
		return fmt.Sprintf("%s, called at step %d, never answered", s, o.called)
	}
	if o.failure != "" {
		return fmt.Sprintf("%s, steps %d to %d: %s", s, o.called, o.returned, o.failure)
	}
	how := ""
	if o.fast {
		how = " fast"
	}
	return fmt.Sprintf("%s = %s, steps %d to %d%s, at revision %d", s, describeResult(o.result), o.called, o.returned, how, o.revision)
}

func describeCommand(c *wire.Command) string {
	var b strings.Builder
	b.WriteString(c.Verb.String())
	if c.Key != "" || c.End != "" {
		fmt.Fprintf(&b, " %s", c.Key)
	}
	if c.End != "" {
		fmt.Fprintf(&b, "..%s", c.End)
	}
	for _, k := range c.Keys {
		fmt.Fprintf(&b, " %s", k)
	}
	for _, p := range c.Pairs {
		fmt.Fprintf(&b, " %s=%s", p.Key, p.Value)
	}
	if len(c.Value) > 0 {
		fmt.Fprintf(&b, " = %s", c.Value)
	}
	if c.Cond != 0 {
		fmt.Fprintf(&b, " if(%d %s %d)", c.Cond, c.Expect, c.Revision)
	}
	if c.Delta != 0 {
		fmt.Fprintf(&b, " by %d", c.Delta)
	}
	if c.TTL != 0 {
		fmt.Fprintf(&b, " for %d ms", c.TTL)
	}
	for i := range c.Commands {
		fmt.Fprintf(&b, " {%s}", describeCommand(&c.Commands[i]))
	}
	return b.String()
}

func describeResult(b []byte) string {
	r, err := wire.ParseResult(b)
	if err != nil {
		return fmt.Sprintf("%x", b)
	}
	return describeParsed(&r)
}

func describeParsed(r *wire.Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s", [...]string{"ok", "not found", "not met", "wrong type", "too large", "malformed"}[min(r.Code, 5)])
	if r.Found || len(r.Value) > 0 {
		fmt.Fprintf(&b, " %q", r.Value)
	}
	if r.Number != 0 {
		fmt.Fprintf(&b, " %d", r.Number)
	}
	if r.Revision != 0 {
		fmt.Fprintf(&b, " rev %d", r.Revision)
	}
	for _, p := range r.Pairs {
		fmt.Fprintf(&b, " %s=%q@%d", p.Key, p.Value, p.Revision)
	}
	for i := range r.Results {
		fmt.Fprintf(&b, " {%s}", describeParsed(&r.Results[i]))
	}
	return b.String()
}

// describe formats a message for a trace.
func describe(m *wire.Message) string {
	s := m.String()
	if m.Kind == wire.Raft {
		s += " " + describeRaft(m.Data)
	}
	return s
}

// maxKeys is the largest number of registers.
const maxKeys = 8

// workload generates commands.
type workload struct {
	random *random
	keys   int     // registers k0 … and counters c0 …
	weak   float64 // share of weak operations
	spans  float64 // share of operations on many keys
	timed  float64 // share of writes with a time to live or a lease
	next   uint64  // id of the last operation
}

func (l *workload) key() string     { return fmt.Sprintf("k%d", l.random.below(l.keys)) }
func (l *workload) counter() string { return fmt.Sprintf("c%d", l.random.below(l.keys)) }

// operation returns a random operation.
func (l *workload) operation(writes float64, weakAllowed bool) *operation {
	l.next++
	o := &operation{id: l.next, write: l.random.chance(writes), weak: weakAllowed && l.random.chance(l.weak)}
	switch {
	case o.write && o.weak:
		o.command = l.blind(o.id)
	case o.write:
		o.command = l.strong(o.id)
	case o.weak && l.random.chance(0.05):
		o.wait, o.weak = true, false
	default:
		o.command = l.query()
	}
	if o.write {
		o.command.Limit = o.id
	}
	if !o.wait {
		o.bytes = o.command.Append(nil)
		o.command.Footprint(&o.foot)
	}
	return o
}

func value(id uint64) []byte { return fmt.Appendf(nil, "v%d", id) }

func (l *workload) blind(id uint64) wire.Command {
	if l.random.chance(l.timed) {
		return wire.Command{Verb: wire.Set, Key: l.timedKey(), Value: value(id), TTL: int64(20 + l.random.below(500)), Options: wire.NoReply}
	}
	switch l.random.below(10) {
	case 0, 1, 2:
		return wire.Command{Verb: wire.Increment, Key: l.counter(), Delta: 1, Options: wire.NoReply}
	case 3:
		return wire.Command{Verb: wire.Delete, Keys: []string{l.key()}, Options: wire.NoReply}
	case 4:
		return wire.Command{Verb: wire.SetMany, Pairs: []wire.Pair{{Key: l.key(), Value: value(id)}, {Key: l.key(), Value: value(id)}}, Options: wire.NoReply}
	}
	return wire.Command{Verb: wire.Set, Key: l.key(), Value: value(id), Options: wire.NoReply}
}

func (l *workload) timedKey() string { return fmt.Sprintf("t%d", l.random.below(l.keys)) }

func (l *workload) strong(id uint64) wire.Command {
	if l.random.chance(l.timed) {
		if l.random.chance(0.5) {
			return wire.Command{Verb: wire.LeaseGrant, TTL: int64(20 + l.random.below(1000))}
		}
		return wire.Command{Verb: wire.Set, Key: l.timedKey(), Value: value(id), TTL: int64(20 + l.random.below(500))}
	}
	if l.random.chance(l.spans) {
		return l.spanning(id)
	}
	switch l.random.below(10) {
	case 0, 1, 2:
		return wire.Command{Verb: wire.Increment, Key: l.counter(), Delta: 1}
	case 3:
		return wire.Command{Verb: wire.Delete, Keys: []string{l.key()}, Options: wire.ReturnOld}
	case 4:
		return wire.Command{Verb: wire.Set, Key: l.key(), Value: value(id), Cond: wire.IfAbsent, Options: wire.ReturnOld}
	case 5:
		return wire.Command{Verb: wire.Set, Key: l.key(), Value: value(id), Cond: wire.IfValue, Expect: value(uint64(l.random.below(int(id)))), Options: wire.ReturnOld}
	case 6:
		return wire.Command{Verb: wire.Set, Key: l.key(), Value: value(id), Options: wire.ReturnOld}
	}
	return wire.Command{Verb: wire.Set, Key: l.key(), Value: value(id)}
}

func (l *workload) spanning(id uint64) wire.Command {
	switch l.random.below(4) {
	case 0:
		return wire.Command{Verb: wire.DeleteRange, Key: "k0", End: l.key()}
	case 1:
		return wire.Command{Verb: wire.SetMany, Pairs: []wire.Pair{{Key: l.key(), Value: value(id)}, {Key: l.key(), Value: value(id)}}}
	}
	from, to := l.key(), l.key()
	return wire.Command{Verb: wire.Transaction, Commands: []wire.Command{
		{Verb: wire.Get, Key: from},
		{Verb: wire.Set, Key: to, Value: value(id), Options: wire.ReturnOld},
		{Verb: wire.Increment, Key: l.counter(), Delta: 1},
	}}
}

func (l *workload) query() wire.Command {
	if l.random.chance(l.timed) {
		return wire.Command{Verb: wire.Get, Key: l.timedKey()}
	}
	if l.random.chance(l.spans) {
		switch l.random.below(3) {
		case 0:
			return wire.Command{Verb: wire.Range, Key: "c", End: "l", Limit: uint64(l.random.below(4))}
		case 1:
			return wire.Command{Verb: wire.Count, Key: "k", End: "l"}
		}
		return wire.Command{Verb: wire.Many, Keys: []string{l.key(), l.key(), l.counter()}}
	}
	if l.random.chance(0.3) {
		return wire.Command{Verb: wire.Get, Key: l.counter()}
	}
	return wire.Command{Verb: wire.Get, Key: l.key()}
}

// describeRaft formats a message of the engine.
func describeRaft(data []byte) string {
	m := &pb.Message{}
	if err := proto.Unmarshal(data, m); err != nil {
		return err.Error()
	}
	s := fmt.Sprintf("%v term %d index %d of %d commit %d", m.GetType(), m.GetTerm(), m.GetIndex(), m.GetLogTerm(), m.GetCommit())
	if n := len(m.GetEntries()); n > 0 {
		s += fmt.Sprintf(" with %d entries", n)
	}
	if m.GetReject() {
		s += " rejected"
	}
	return s
}
