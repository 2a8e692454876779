package state

import (
	"bytes"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// model is the simplest implementation of the store: plain maps, which are searched completely.
// The tests compare the store with it.
type model struct {
	keys     map[string]Item
	leases   map[uint64]lease
	clock    int64
	revision uint64
	changes  []Change
}

func newModel() *model {
	return &model{keys: map[string]Item{}, leases: map[uint64]lease{}}
}

func (m *model) clone() *model {
	return &model{keys: maps.Clone(m.keys), leases: maps.Clone(m.leases), clock: m.clock, revision: m.revision}
}

func (m *model) note(key string, kind ChangeKind) {
	it := m.keys[key]
	m.changes = append(m.changes, Change{Key: key, Value: it.Value, Revision: m.revision, Kind: kind, Lease: it.Lease})
}

func (m *model) drop(key string, kind ChangeKind) bool {
	_, ok := m.keys[key]
	if ok {
		delete(m.keys, key)
		m.note(key, kind)
	}
	return ok
}

func (m *model) store(key string, it Item) {
	if it.Deadline != 0 && it.Deadline <= m.clock {
		m.drop(key, Expired)
		return
	}
	it.Revision = m.revision
	m.keys[key] = it
	m.note(key, Put)
}

func (m *model) sorted(inside func(key string, it Item) bool) []string {
	var list []string
	for key, it := range m.keys {
		if inside(key, it) {
			list = append(list, key)
		}
	}
	slices.Sort(list)
	return list
}

func (m *model) span(from, to string) []string {
	return m.sorted(func(key string, _ Item) bool { return key >= from && (to == "" || key < to) })
}

func (m *model) keysOf(id uint64) []string {
	return m.sorted(func(_ string, it Item) bool { return it.Lease == id })
}

func (m *model) end(id uint64, kind ChangeKind) int {
	keys := m.keysOf(id)
	for _, key := range keys {
		m.drop(key, kind)
	}
	delete(m.leases, id)
	return len(keys)
}

// pass moves the clock and ends what is due, the earliest first, keys before
// leases.
func (m *model) pass(now int64) {
	m.clock = max(m.clock, now)
	type due struct {
		at    int64
		lease uint64
		key   string
	}
	var list []due
	for key, it := range m.keys {
		if it.Deadline != 0 && it.Deadline <= m.clock {
			list = append(list, due{it.Deadline, 0, key})
		}
	}
	for id, l := range m.leases {
		if l.deadline <= m.clock {
			list = append(list, due{l.deadline, id, ""})
		}
	}
	slices.SortFunc(list, func(a, b due) int {
		switch {
		case a.at != b.at:
			return int(a.at - b.at)
		case a.lease != b.lease:
			return int(a.lease) - int(b.lease)
		}
		return strings.Compare(a.key, b.key)
	})
	for _, d := range list {
		if d.lease != 0 {
			m.end(d.lease, Expired)
		} else {
			m.drop(d.key, Expired)
		}
	}
}

func (m *model) apply(revision uint64, now int64, c *wire.Command) wire.Result {
	m.revision = revision
	m.pass(now)
	return m.run(c)
}

func (m *model) run(c *wire.Command) wire.Result {
	r := m.answer(c)
	if c.Options&wire.NoReply != 0 {
		return wire.Result{Code: r.Code}
	}
	return r
}

func (m *model) met(c *wire.Command, key string) bool {
	it, ok := m.keys[key]
	return map[uint8]bool{
		wire.Always:     true,
		wire.IfAbsent:   !ok,
		wire.IfPresent:  ok,
		wire.IfRevision: ok == (c.Revision != 0) && it.Revision == c.Revision,
		wire.IfValue:    ok && bytes.Equal(it.Value, c.Expect),
	}[c.Cond]
}

func (m *model) moment(c *wire.Command) int64 {
	if c.Options&wire.Absolute != 0 {
		return c.TTL * 1e6
	}
	return m.clock + c.TTL*1e6
}

func (m *model) answer(c *wire.Command) (r wire.Result) {
	switch c.Verb {
	case wire.Set, wire.Delete:
		return m.setOrDelete(c)
	case wire.Increment:
		old, ok := m.keys[c.Key]
		sum := big.NewInt(0)
		if ok {
			if _, valid := sum.SetString(string(old.Value), 10); !valid || sum.String() != string(old.Value) || !sum.IsInt64() {
				return wire.Result{Code: wire.WrongType}
			}
		}
		if sum.Add(sum, big.NewInt(c.Delta)); !sum.IsInt64() {
			return wire.Result{Code: wire.WrongType}
		}
		old.Value = []byte(sum.String())
		m.store(c.Key, old)
		return wire.Result{Number: sum.Int64()}
	case wire.Append:
		old := m.keys[c.Key]
		old.Value = []byte(string(old.Value) + string(c.Value))
		m.store(c.Key, old)
		return wire.Result{Number: int64(len(old.Value))}
	case wire.Expire:
		it, ok := m.keys[c.Key]
		at, forever := m.moment(c), it.Deadline == 0
		met := map[uint8]bool{
			wire.Always: true, wire.IfNoTTL: forever, wire.IfTTL: !forever,
			wire.IfGreater: !forever && at > it.Deadline, wire.IfLess: forever || at < it.Deadline,
		}[c.Cond]
		if ok && met {
			it.Deadline = at
			m.store(c.Key, it)
			r.Number = 1
		}
	case wire.Persist:
		if it := m.keys[c.Key]; it.Deadline != 0 {
			it.Deadline = 0
			m.store(c.Key, it)
			r.Number = 1
		}
	case wire.SetMany:
		for _, p := range c.Pairs {
			if _, ok := m.keys[p.Key]; ok && c.Cond == wire.IfAbsent {
				return wire.Result{Code: wire.NotMet}
			}
		}
		for _, p := range c.Pairs {
			m.store(p.Key, Item{Value: p.Value})
			r.Number++
		}
	case wire.DeleteRange:
		for _, key := range m.span(c.Key, c.End) {
			m.drop(key, Deleted)
			r.Number++
		}
	case wire.Transaction:
		for _, g := range c.Guards {
			if it, ok := m.keys[g.Key]; ok != (g.Revision != 0) || it.Revision != g.Revision {
				return wire.Result{Code: wire.NotMet}
			}
		}
		for i := range c.Commands {
			r.Results = append(r.Results, m.run(&c.Commands[i]))
		}
	case wire.LeaseGrant:
		m.leases[m.revision] = lease{ttl: c.TTL * 1e6, deadline: m.clock + c.TTL*1e6}
		r.Number = int64(m.revision)
	case wire.LeaseKeep, wire.LeaseRevoke, wire.LeaseTTL:
		return m.useLease(c)
	default:
		return m.read(c)
	}
	return r
}

func (m *model) setOrDelete(c *wire.Command) (r wire.Result) {
	if _, ok := m.leases[c.Lease]; c.Verb == wire.Set && c.Lease != 0 && !ok {
		return wire.Result{Code: wire.NotFound}
	}
	keys := c.Keys
	if c.Verb == wire.Set {
		keys = []string{c.Key}
	}
	if c.Options&wire.ReturnOld != 0 {
		old, ok := m.keys[keys[0]]
		r.Found, r.Value = ok, old.Value
	}
	if len(keys) == 1 && !m.met(c, keys[0]) {
		r.Code = wire.NotMet
		return r
	}
	if c.Verb == wire.Delete {
		for _, key := range keys {
			if m.drop(key, Deleted) {
				r.Number++
			}
		}
		return r
	}
	it := Item{Value: c.Value, Lease: c.Lease}
	old := m.keys[c.Key]
	switch {
	case c.Options&wire.KeepTTL != 0:
		it.Deadline = old.Deadline
		if it.Lease == 0 {
			it.Lease = old.Lease
		}
	case c.TTL != 0:
		it.Deadline = m.moment(c)
	}
	m.store(c.Key, it)
	return r
}

func (m *model) useLease(c *wire.Command) (r wire.Result) {
	l, ok := m.leases[c.Lease]
	if !ok {
		return wire.Result{Code: wire.NotFound}
	}
	switch c.Verb {
	case wire.LeaseKeep:
		l.deadline = m.clock + l.ttl
		m.leases[c.Lease] = l
		r.Number = l.ttl / 1e6
	case wire.LeaseRevoke:
		r.Number = int64(m.end(c.Lease, Deleted))
	case wire.LeaseTTL:
		r.Number = (l.deadline - m.clock + 999_999) / 1e6
		if c.Options&wire.KeysOnly != 0 {
			for _, key := range m.keysOf(c.Lease) {
				r.Pairs = append(r.Pairs, wire.Pair{Key: key})
			}
		}
	}
	return r
}

func (m *model) get(key string, keysOnly bool) wire.Result {
	it, ok := m.keys[key]
	switch {
	case !ok:
		return wire.Result{Code: wire.NotFound}
	case keysOnly:
		return wire.Result{Found: true, Number: int64(len(it.Value)), Revision: it.Revision, Lease: it.Lease}
	}
	return wire.Result{Found: true, Value: it.Value, Revision: it.Revision, Lease: it.Lease}
}

func (m *model) read(c *wire.Command) (r wire.Result) {
	keysOnly := c.Options&wire.KeysOnly != 0
	switch c.Verb {
	case wire.Get:
		return m.get(c.Key, keysOnly)
	case wire.Many:
		for _, key := range c.Keys {
			r.Results = append(r.Results, m.get(key, keysOnly))
		}
	case wire.Count:
		r.Number = int64(len(m.span(c.Key, c.End)))
	case wire.TTL:
		it, ok := m.keys[c.Key]
		switch {
		case !ok:
			r.Number = -2
		case it.Deadline == 0:
			r.Number = -1
		case c.Options&wire.Absolute != 0:
			r.Number = (it.Deadline + 999_999) / 1e6
		default:
			r.Number = (it.Deadline - m.clock + 999_999) / 1e6
		}
	case wire.Range:
		keys := m.span(c.Key, c.End)
		if c.Options&wire.Reverse != 0 {
			slices.Reverse(keys)
		}
		if c.Limit > 0 && uint64(len(keys)) > c.Limit {
			keys, r.More = keys[:c.Limit], true
		}
		for _, key := range keys {
			it := m.keys[key]
			if keysOnly {
				it.Value = nil
			}
			r.Pairs = append(r.Pairs, wire.Pair{Key: key, Value: it.Value, Revision: it.Revision})
		}
	default:
		panic(fmt.Sprintf("the model does not know %v", c.Verb))
	}
	return r
}
