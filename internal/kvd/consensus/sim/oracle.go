package sim

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// oracle is a slow and simple implementation of the workload's commands: it searches a map
// where the real store has indexes. The checkers replay the log of a run on an oracle and
// compare every answer. The replicas of a world may use oracles instead of the real store.
type oracle struct {
	Items  map[string]oracleItem
	Leases map[uint64]oracleLease
	Clock  int64 // Unix nanoseconds, never backwards
}

type oracleItem struct {
	Value    string
	Revision uint64
	Deadline int64 // Unix nanoseconds, 0: none
	Lease    uint64
}

type oracleLease struct{ TTL, Deadline int64 }

func newOracle() *oracle {
	return &oracle{Items: map[string]oracleItem{}, Leases: map[uint64]oracleLease{}}
}

func (o *oracle) clone() *oracle {
	c := newOracle()
	c.Clock = o.Clock
	maps.Copy(c.Items, o.Items)
	maps.Copy(c.Leases, o.Leases)
	return c
}

// Apply implements consensus.Machine.
func (o *oracle) Apply(revision uint64, now int64, command []byte) []byte {
	o.advance(now)
	c, err := wire.ParseCommand(command)
	if err == nil {
		err = c.Validate()
	}
	r := wire.Result{Code: wire.Malformed}
	if err == nil {
		r = o.do(&c, revision)
	}
	return r.Append(nil)
}

// Evaluate implements consensus.Machine.
func (o *oracle) Evaluate(now int64, writes [][]byte, command []byte) []byte {
	c := o
	if len(writes) > 0 || now > o.Clock || isWrite(command) {
		c = o.clone()
		c.advance(now)
	}
	for _, w := range writes {
		c.Apply(pendingRevision, now, w)
	}
	return c.Apply(pendingRevision, now, command)
}

// pendingRevision is the revision that reads show for writes that have none yet.
const pendingRevision = 0

func isWrite(command []byte) bool { return len(command) > 0 && wire.Verb(command[0]).IsWrite() }

// Advance implements consensus.Machine.
func (o *oracle) Advance(_ uint64, now int64) { o.advance(now) }

// advance moves the clock and removes what has expired.
func (o *oracle) advance(now int64) {
	o.Clock = max(o.Clock, now)
	for id, l := range o.Leases {
		if l.Deadline <= o.Clock {
			o.revoke(id)
		}
	}
	for k, v := range o.Items {
		if v.Deadline != 0 && v.Deadline <= o.Clock {
			delete(o.Items, k)
		}
	}
}

func (o *oracle) revoke(id uint64) (n int64) {
	delete(o.Leases, id)
	for k, v := range o.Items {
		if v.Lease == id {
			delete(o.Items, k)
			n++
		}
	}
	return n
}

func (o *oracle) keys(from, to string) []string {
	var keys []string
	for k := range o.Items {
		if k >= from && (to == "" || k < to) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

func (o *oracle) moment(ttl int64) int64 {
	if ttl == 0 {
		return 0
	}
	return o.Clock + ttl*int64(time.Millisecond)
}

func (o *oracle) do(c *wire.Command, revision uint64) wire.Result {
	r := o.execute(c, revision)
	if c.Options&wire.NoReply != 0 {
		return wire.Result{Code: r.Code}
	}
	return r
}

func (o *oracle) execute(c *wire.Command, revision uint64) (r wire.Result) {
	switch c.Verb {
	case wire.Set:
		return o.set(c, revision)
	case wire.Delete:
		return o.remove(c)
	case wire.Increment:
		old := o.Items[c.Key]
		n, err := strconv.ParseInt(old.Value, 10, 64)
		if err != nil && old.Value != "" {
			return wire.Result{Code: wire.WrongType}
		}
		old.Value, old.Revision = strconv.FormatInt(n+c.Delta, 10), revision
		o.Items[c.Key] = old
		r.Number = n + c.Delta
	case wire.Append:
		old := o.Items[c.Key]
		old.Value, old.Revision = old.Value+string(c.Value), revision
		o.Items[c.Key] = old
		r.Number = int64(len(old.Value))
	case wire.SetMany:
		for _, p := range c.Pairs {
			o.Items[p.Key] = oracleItem{Value: string(p.Value), Revision: revision}
		}
		r.Number = int64(len(c.Pairs))
	case wire.DeleteRange:
		for _, k := range o.keys(c.Key, c.End) {
			delete(o.Items, k)
			r.Number++
		}
	case wire.Transaction:
		return o.transaction(c, revision)
	case wire.LeaseGrant:
		o.Leases[revision] = oracleLease{c.TTL, o.moment(c.TTL)}
		r.Number = int64(revision)
	case wire.LeaseRevoke:
		if _, ok := o.Leases[c.Lease]; !ok {
			return wire.Result{Code: wire.NotFound}
		}
		r.Number = o.revoke(c.Lease)
	default:
		return o.read(c)
	}
	return r
}

func (o *oracle) set(c *wire.Command, revision uint64) (r wire.Result) {
	old, exists := o.Items[c.Key]
	if c.Options&wire.ReturnOld != 0 && exists {
		r.Found, r.Value = true, []byte(old.Value)
	}
	met := true
	switch c.Cond {
	case wire.IfAbsent:
		met = !exists
	case wire.IfPresent:
		met = exists
	case wire.IfRevision:
		met = old.Revision == c.Revision && exists == (c.Revision != 0)
	case wire.IfValue:
		met = exists && old.Value == string(c.Expect)
	}
	if !met {
		r.Code = wire.NotMet
		return r
	}
	if _, ok := o.Leases[c.Lease]; c.Lease != 0 && !ok {
		return wire.Result{Code: wire.NotFound}
	}
	o.Items[c.Key] = oracleItem{Value: string(c.Value), Revision: revision, Deadline: o.moment(c.TTL), Lease: c.Lease}
	return r
}

func (o *oracle) remove(c *wire.Command) (r wire.Result) {
	for _, k := range c.Keys {
		old, exists := o.Items[k]
		if !exists {
			continue
		}
		if c.Options&wire.ReturnOld != 0 {
			r.Found, r.Value = true, []byte(old.Value)
		}
		delete(o.Items, k)
		r.Number++
	}
	return r
}

func (o *oracle) transaction(c *wire.Command, revision uint64) (r wire.Result) {
	for _, g := range c.Guards {
		if item, exists := o.Items[g.Key]; item.Revision != g.Revision || exists != (g.Revision != 0) {
			return wire.Result{Code: wire.NotMet}
		}
	}
	for i := range c.Commands {
		r.Results = append(r.Results, o.do(&c.Commands[i], revision))
	}
	return r
}

func (o *oracle) read(c *wire.Command) (r wire.Result) {
	switch c.Verb {
	case wire.Get:
		return o.get(c.Key)
	case wire.Many:
		for _, k := range c.Keys {
			r.Results = append(r.Results, o.get(k))
		}
	case wire.Count:
		r.Number = int64(len(o.keys(c.Key, c.End)))
	case wire.Range:
		keys := o.keys(c.Key, c.End)
		if c.Limit != 0 && uint64(len(keys)) > c.Limit {
			keys, r.More = keys[:c.Limit], true
		}
		for _, k := range keys {
			r.Pairs = append(r.Pairs, wire.Pair{Key: k, Value: []byte(o.Items[k].Value), Revision: o.Items[k].Revision})
		}
	default:
		r.Code = wire.Malformed
	}
	return r
}

func (o *oracle) get(key string) wire.Result {
	v, ok := o.Items[key]
	if !ok {
		return wire.Result{Code: wire.NotFound}
	}
	return wire.Result{Found: true, Value: []byte(v.Value), Revision: v.Revision, Lease: v.Lease}
}

// Steady implements consensus.Machine.
func (o *oracle) Steady(f *wire.Footprint) bool {
	for k, v := range o.Items {
		if (v.Deadline != 0 || v.Lease != 0) && f.Holds(k) {
			return false
		}
	}
	return true
}

// Untouched implements consensus.Machine. There is no history.
func (o *oracle) Untouched(since map[string]uint64) { clear(since) }

// Footprint implements consensus.Machine.
func (o *oracle) Footprint(command []byte, f *wire.Footprint) error {
	c, err := wire.ParseCommand(command)
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		return fmt.Errorf("footprint: %w", err)
	}
	c.Footprint(f)
	return nil
}

// Due implements consensus.Machine.
func (o *oracle) Due() int64 {
	due := int64(0)
	earlier := func(t int64) {
		if t != 0 && (due == 0 || t < due) {
			due = t
		}
	}
	for _, l := range o.Leases {
		earlier(l.Deadline)
	}
	for _, v := range o.Items {
		earlier(v.Deadline)
	}
	return due
}

// SetFormat implements consensus.Machine.
func (o *oracle) SetFormat(uint64) {}

// Digest implements consensus.Machine.
func (o *oracle) Digest() uint64 {
	h := newHash()
	for _, k := range o.keys("", "") {
		v := o.Items[k]
		h.string(k)
		h.string(v.Value)
		h.number(v.Revision)
		h.number(uint64(v.Deadline))
		h.number(v.Lease)
	}
	ids := make([]uint64, 0, len(o.Leases))
	for id := range o.Leases {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		h.number(id)
		h.number(uint64(o.Leases[id].Deadline))
	}
	return h.sum
}

// Snapshot implements consensus.Machine.
func (o *oracle) Snapshot() io.WriterTo { return oracleImage{o.clone()} }

type oracleImage struct{ *oracle }

// WriteTo implements io.WriterTo.
func (i oracleImage) WriteTo(w io.Writer) (int64, error) {
	b, err := json.Marshal(i.oracle) // maps in order of their keys
	if err != nil {
		return 0, fmt.Errorf("encode the state: %w", err)
	}
	n, err := w.Write(b)
	return int64(n), err
}

// Restore implements consensus.Machine.
func (o *oracle) Restore(r io.Reader) error {
	n := newOracle()
	if err := json.NewDecoder(r).Decode(n); err != nil {
		return fmt.Errorf("decode the state: %w", err)
	}
	*o = *n
	return nil
}
