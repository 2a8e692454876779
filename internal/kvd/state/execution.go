package state

import (
	"bytes"
	"math"
	"strconv"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// keyspace is what commands read and write: the Store, or an overlay above it.
type keyspace interface {
	// get returns the item of key, nil if it does not exist.
	get(key string) *item
	// put stores it under key. The value of an owned item never changes. A value that is not
	// owned, and key, are valid only during the command.
	put(key string, it item, owned bool)
	// remove removes key and reports whether it existed.
	remove(key string, kind ChangeKind) bool
	// removeSpan removes the keys of span and returns their number.
	removeSpan(span wire.Span) int
	// scan calls fn for the keys of span in order until it returns false.
	scan(span wire.Span, reverse bool, fn func(it *item) bool)
	// count returns the number of keys in span.
	count(span wire.Span) int
	lease(id uint64) (lease, bool)
	setLease(id uint64, l lease)
	// endLease removes a lease with its keys and returns their number.
	endLease(id uint64, kind ChangeKind) int
	// leaseKeys returns the keys of a lease in order.
	leaseKeys(id uint64) []string
}

// execution executes commands at one revision and time.
type execution struct {
	space    keyspace
	clock    int64
	revision uint64 // 0: not known yet
	format   uint64 // of the cluster
	left     int    // bytes that the answer may still take
}

func (e *execution) begin(s keyspace, clock int64, revision, format uint64) {
	*e = execution{space: s, clock: clock, revision: revision, format: format, left: wire.MaxResult}
}

// overhead is the largest size of a result beside keys and values: bitmap, code, three numbers
// and the length of the value.
const overhead = 40

// reserve reserves n bytes of the answer, if they fit.
func (e *execution) reserve(n int) bool {
	if n > e.left {
		return false
	}
	e.left -= n
	return true
}

// run executes a valid command.
func (e *execution) run(c *wire.Command) (r wire.Result) {
	switch c.Verb {
	case wire.Set:
		r = e.set(c)
	case wire.Delete:
		r = e.delete(c)
	case wire.Increment:
		r = e.increment(c)
	case wire.Append:
		r = e.append(c)
	case wire.Expire:
		r = e.expire(c)
	case wire.Persist:
		r = e.persist(c)
	case wire.SetMany:
		r = e.setMany(c)
	case wire.DeleteRange:
		r.Number = int64(e.space.removeSpan(wire.Span{From: c.Key, To: c.End}))
	case wire.Transaction:
		r = e.transaction(c)
	case wire.LeaseGrant, wire.LeaseKeep, wire.LeaseRevoke:
		r = e.changeLease(c)
	default:
		r = e.read(c)
	}
	if c.Options&wire.NoReply != 0 {
		return wire.Result{Code: r.Code}
	}
	return r
}

func (e *execution) set(c *wire.Command) (r wire.Result) {
	if c.Lease != 0 {
		if _, ok := e.space.lease(c.Lease); !ok {
			return wire.Result{Code: wire.NotFound}
		}
	}
	it := item{value: c.Value, revision: e.revision, lease: c.Lease, deadline: e.deadline(c)}
	if c.Cond != wire.Always || c.Options&(wire.ReturnOld|wire.KeepTTL) != 0 {
		old := e.space.get(c.Key)
		if c.Options&wire.ReturnOld != 0 && !e.setOld(old, &r) {
			return wire.Result{Code: wire.TooLarge}
		}
		if !holds(c, old) {
			r.Code = wire.NotMet
			return r
		}
		if c.Options&wire.KeepTTL != 0 && old != nil {
			it.deadline = old.deadline
			if it.lease == 0 {
				it.lease = old.lease
			}
		}
	}
	e.put(c.Key, it, false)
	return r
}

// put stores it, or removes key if it has expired already.
func (e *execution) put(key string, it item, owned bool) {
	if it.deadline != 0 && it.deadline <= e.clock {
		e.space.remove(key, Expired)
		return
	}
	e.space.put(key, it, owned)
}

// setOld sets the old item in r and reports whether it fits.
func (e *execution) setOld(old *item, r *wire.Result) bool {
	if old == nil {
		return true
	}
	r.Found, r.Value = true, old.value
	return e.reserve(len(old.value) + overhead)
}

// holds reports whether the condition of c holds for the old item.
func holds(c *wire.Command, old *item) bool {
	switch c.Cond {
	case wire.IfAbsent:
		return old == nil
	case wire.IfPresent:
		return old != nil
	case wire.IfRevision:
		return isRevision(old, c.Revision)
	case wire.IfValue:
		return old != nil && bytes.Equal(old.value, c.Expect)
	}
	return true
}

// isRevision reports whether old has this revision, or does not exist if that is 0. An item
// that was only evaluated has no revision, because its writer does not know it either.
func isRevision(old *item, revision uint64) bool {
	if old == nil || revision == 0 {
		return old == nil && revision == 0
	}
	return old.revision == revision
}

// deadline returns when the item that c stores expires, 0: never. A time before 1970 counts as
// 1970, which is equally past.
func (e *execution) deadline(c *wire.Command) int64 {
	switch {
	case c.Options&wire.Absolute != 0:
		return max(c.TTL*1_000_000, 1)
	case c.TTL == 0 && c.Verb != wire.Expire:
		return 0
	default:
		return later(e.clock, c.TTL*1_000_000)
	}
}

// later returns clock + ns, at most the largest value and never 0.
func later(clock, ns int64) int64 {
	if ns > 0 && clock > math.MaxInt64-ns {
		return math.MaxInt64
	}
	return max(clock+ns, 1)
}

func (e *execution) delete(c *wire.Command) (r wire.Result) {
	if c.Cond != wire.Always || c.Options&wire.ReturnOld != 0 {
		old := e.space.get(c.Keys[0])
		if c.Options&wire.ReturnOld != 0 && !e.setOld(old, &r) {
			return wire.Result{Code: wire.TooLarge}
		}
		if !holds(c, old) {
			r.Code = wire.NotMet
			return r
		}
	}
	for _, key := range c.Keys {
		if e.space.remove(key, Deleted) {
			r.Number++
		}
	}
	return r
}

func (e *execution) increment(c *wire.Command) wire.Result {
	it := item{revision: e.revision}
	sum := c.Delta
	if old := e.space.get(c.Key); old != nil {
		n, ok := parseInteger(old.value)
		if !ok {
			return wire.Result{Code: wire.WrongType}
		}
		if n > 0 && c.Delta > math.MaxInt64-n || n < 0 && c.Delta < math.MinInt64-n {
			return wire.Result{Code: wire.WrongType, Found: e.format >= wire.FormatOverflow}
		}
		sum += n
		it.deadline, it.lease = old.deadline, old.lease
	}
	var digits [20]byte
	it.value = strconv.AppendInt(digits[:0], sum, 10)
	e.put(c.Key, it, false)
	return wire.Result{Number: sum}
}

// parseInteger parses a decimal integer in the only form in which strconv and Redis format it.
func parseInteger(b []byte) (int64, bool) {
	if len(b) == 0 || len(b) > 20 {
		return 0, false
	}
	n, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil {
		return 0, false
	}
	var digits [20]byte
	return n, bytes.Equal(strconv.AppendInt(digits[:0], n, 10), b)
}

func (e *execution) append(c *wire.Command) wire.Result {
	old := e.space.get(c.Key)
	if old == nil {
		e.put(c.Key, item{value: c.Value, revision: e.revision}, false)
		return wire.Result{Number: int64(len(c.Value))}
	}
	n := len(old.value) + len(c.Value)
	if n > wire.MaxValue {
		return wire.Result{Code: wire.TooLarge}
	}
	it := *old
	it.revision = e.revision
	it.value = append(append(make([]byte, 0, n), old.value...), c.Value...)
	e.put(c.Key, it, true)
	return wire.Result{Number: int64(n)}
}

func (e *execution) expire(c *wire.Command) wire.Result {
	old := e.space.get(c.Key)
	if old == nil {
		return wire.Result{}
	}
	it := *old
	it.revision, it.deadline = e.revision, e.deadline(c)
	met := true
	switch c.Cond {
	case wire.IfValue:
		met = bytes.Equal(old.value, c.Expect)
	case wire.IfGreater: // no time to live counts as the longest
		met = old.deadline != 0 && it.deadline > old.deadline
	case wire.IfLess:
		met = old.deadline == 0 || it.deadline < old.deadline
	case wire.IfNoTTL:
		met = old.deadline == 0
	case wire.IfTTL:
		met = old.deadline != 0
	}
	if c.Options&wire.KeepTTL != 0 {
		met = met && old.deadline != 0
		it.deadline = later(old.deadline, c.TTL*1_000_000)
	}
	if !met {
		return wire.Result{}
	}
	e.put(c.Key, it, true)
	return wire.Result{Number: 1}
}

func (e *execution) persist(c *wire.Command) wire.Result {
	old := e.space.get(c.Key)
	if old == nil || old.deadline == 0 {
		return wire.Result{}
	}
	it := *old
	it.revision, it.deadline = e.revision, 0
	e.put(c.Key, it, true)
	return wire.Result{Number: 1}
}

func (e *execution) setMany(c *wire.Command) wire.Result {
	if c.Cond == wire.IfAbsent {
		for i := range c.Pairs {
			if e.space.get(c.Pairs[i].Key) != nil {
				return wire.Result{Code: wire.NotMet}
			}
		}
	}
	for i := range c.Pairs {
		e.put(c.Pairs[i].Key, item{value: c.Pairs[i].Value, revision: e.revision}, false)
	}
	return wire.Result{Number: int64(len(c.Pairs))}
}

func (e *execution) transaction(c *wire.Command) wire.Result {
	for i := range c.Guards {
		if !isRevision(e.space.get(c.Guards[i].Key), c.Guards[i].Revision) {
			return wire.Result{Code: wire.NotMet}
		}
	}
	// The overhead of all answers is reserved, so that each of them fits.
	e.left -= overhead * len(c.Commands)
	results := make([]wire.Result, len(c.Commands))
	for i := range c.Commands {
		results[i] = e.run(&c.Commands[i])
	}
	return wire.Result{Results: results}
}

func (e *execution) changeLease(c *wire.Command) wire.Result {
	id, ttl := c.Lease, c.TTL*1_000_000
	if c.Verb == wire.LeaseGrant {
		e.space.setLease(e.revision, lease{ttl: ttl, deadline: later(e.clock, ttl)})
		return wire.Result{Number: int64(e.revision)}
	}
	l, ok := e.space.lease(id)
	if !ok {
		return wire.Result{Code: wire.NotFound}
	}
	if c.Verb == wire.LeaseRevoke {
		return wire.Result{Number: int64(e.space.endLease(id, Deleted))}
	}
	e.space.setLease(id, lease{ttl: l.ttl, deadline: later(e.clock, l.ttl)})
	return wire.Result{Number: l.ttl / 1_000_000}
}
