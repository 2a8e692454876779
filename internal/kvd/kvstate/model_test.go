package kvstate

import (
	"bytes"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/kvd/kvwire"
)

// model is the store as one would explain it: plain maps, everything looked for
// by looking at everything. It is the oracle of the tests.
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

func (m *model) apply(revision uint64, now int64, c *kvwire.Command) kvwire.Result {
	m.revision = revision
	m.pass(now)
	return m.run(c)
}

func (m *model) run(c *kvwire.Command) kvwire.Result {
	r := m.answer(c)
	if c.Options&kvwire.NoReply != 0 {
		return kvwire.Result{Code: r.Code}
	}
	return r
}

func (m *model) met(c *kvwire.Command, key string) bool {
	it, ok := m.keys[key]
	return map[uint8]bool{
		kvwire.Always:     true,
		kvwire.IfAbsent:   !ok,
		kvwire.IfPresent:  ok,
		kvwire.IfRevision: ok == (c.Revision != 0) && it.Revision == c.Revision,
		kvwire.IfValue:    ok && bytes.Equal(it.Value, c.Expect),
	}[c.Cond]
}

func (m *model) moment(c *kvwire.Command) int64 {
	if c.Options&kvwire.Absolute != 0 {
		return c.TTL * 1e6
	}
	return m.clock + c.TTL*1e6
}

func (m *model) answer(c *kvwire.Command) (r kvwire.Result) {
	switch c.Verb {
	case kvwire.Set, kvwire.Delete:
		return m.setOrDelete(c)
	case kvwire.Increment:
		old, ok := m.keys[c.Key]
		sum := big.NewInt(0)
		if ok {
			if _, valid := sum.SetString(string(old.Value), 10); !valid || sum.String() != string(old.Value) || !sum.IsInt64() {
				return kvwire.Result{Code: kvwire.WrongType}
			}
		}
		if sum.Add(sum, big.NewInt(c.Delta)); !sum.IsInt64() {
			return kvwire.Result{Code: kvwire.WrongType}
		}
		old.Value = []byte(sum.String())
		m.store(c.Key, old)
		return kvwire.Result{Number: sum.Int64()}
	case kvwire.Append:
		old := m.keys[c.Key]
		old.Value = []byte(string(old.Value) + string(c.Value))
		m.store(c.Key, old)
		return kvwire.Result{Number: int64(len(old.Value))}
	case kvwire.Expire:
		it, ok := m.keys[c.Key]
		at, forever := m.moment(c), it.Deadline == 0
		met := map[uint8]bool{
			kvwire.Always: true, kvwire.IfNoTTL: forever, kvwire.IfTTL: !forever,
			kvwire.IfGreater: !forever && at > it.Deadline, kvwire.IfLess: forever || at < it.Deadline,
		}[c.Cond]
		if ok && met {
			it.Deadline = at
			m.store(c.Key, it)
			r.Number = 1
		}
	case kvwire.Persist:
		if it := m.keys[c.Key]; it.Deadline != 0 {
			it.Deadline = 0
			m.store(c.Key, it)
			r.Number = 1
		}
	case kvwire.SetMany:
		for _, p := range c.Pairs {
			if _, ok := m.keys[p.Key]; ok && c.Cond == kvwire.IfAbsent {
				return kvwire.Result{Code: kvwire.NotMet}
			}
		}
		for _, p := range c.Pairs {
			m.store(p.Key, Item{Value: p.Value})
			r.Number++
		}
	case kvwire.DeleteRange:
		for _, key := range m.span(c.Key, c.End) {
			m.drop(key, Deleted)
			r.Number++
		}
	case kvwire.Transaction:
		for _, g := range c.Guards {
			if it, ok := m.keys[g.Key]; ok != (g.Revision != 0) || it.Revision != g.Revision {
				return kvwire.Result{Code: kvwire.NotMet}
			}
		}
		for i := range c.Commands {
			r.Results = append(r.Results, m.run(&c.Commands[i]))
		}
	case kvwire.LeaseGrant:
		m.leases[m.revision] = lease{ttl: c.TTL * 1e6, deadline: m.clock + c.TTL*1e6}
		r.Number = int64(m.revision)
	case kvwire.LeaseKeep, kvwire.LeaseRevoke, kvwire.LeaseTTL:
		return m.useLease(c)
	default:
		return m.read(c)
	}
	return r
}

func (m *model) setOrDelete(c *kvwire.Command) (r kvwire.Result) {
	if _, ok := m.leases[c.Lease]; c.Verb == kvwire.Set && c.Lease != 0 && !ok {
		return kvwire.Result{Code: kvwire.NotFound}
	}
	keys := c.Keys
	if c.Verb == kvwire.Set {
		keys = []string{c.Key}
	}
	if c.Options&kvwire.ReturnOld != 0 {
		old, ok := m.keys[keys[0]]
		r.Found, r.Value = ok, old.Value
	}
	if len(keys) == 1 && !m.met(c, keys[0]) {
		r.Code = kvwire.NotMet
		return r
	}
	if c.Verb == kvwire.Delete {
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
	case c.Options&kvwire.KeepTTL != 0:
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

func (m *model) useLease(c *kvwire.Command) (r kvwire.Result) {
	l, ok := m.leases[c.Lease]
	if !ok {
		return kvwire.Result{Code: kvwire.NotFound}
	}
	switch c.Verb {
	case kvwire.LeaseKeep:
		l.deadline = m.clock + l.ttl
		m.leases[c.Lease] = l
		r.Number = l.ttl / 1e6
	case kvwire.LeaseRevoke:
		r.Number = int64(m.end(c.Lease, Deleted))
	case kvwire.LeaseTTL:
		r.Number = (l.deadline - m.clock + 999_999) / 1e6
		if c.Options&kvwire.KeysOnly != 0 {
			for _, key := range m.keysOf(c.Lease) {
				r.Pairs = append(r.Pairs, kvwire.Pair{Key: key})
			}
		}
	}
	return r
}

func (m *model) get(key string, keysOnly bool) kvwire.Result {
	it, ok := m.keys[key]
	switch {
	case !ok:
		return kvwire.Result{Code: kvwire.NotFound}
	case keysOnly:
		return kvwire.Result{Found: true, Number: int64(len(it.Value)), Revision: it.Revision, Lease: it.Lease}
	}
	return kvwire.Result{Found: true, Value: it.Value, Revision: it.Revision, Lease: it.Lease}
}

func (m *model) read(c *kvwire.Command) (r kvwire.Result) {
	keysOnly := c.Options&kvwire.KeysOnly != 0
	switch c.Verb {
	case kvwire.Get:
		return m.get(c.Key, keysOnly)
	case kvwire.Many:
		for _, key := range c.Keys {
			r.Results = append(r.Results, m.get(key, keysOnly))
		}
	case kvwire.Count:
		r.Number = int64(len(m.span(c.Key, c.End)))
	case kvwire.TTL:
		it, ok := m.keys[c.Key]
		switch {
		case !ok:
			r.Number = -2
		case it.Deadline == 0:
			r.Number = -1
		case c.Options&kvwire.Absolute != 0:
			r.Number = (it.Deadline + 999_999) / 1e6
		default:
			r.Number = (it.Deadline - m.clock + 999_999) / 1e6
		}
	case kvwire.Range:
		keys := m.span(c.Key, c.End)
		if c.Options&kvwire.Reverse != 0 {
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
			r.Pairs = append(r.Pairs, kvwire.Pair{Key: key, Value: it.Value, Revision: it.Revision})
		}
	default:
		panic(fmt.Sprintf("the model does not know %v", c.Verb))
	}
	return r
}
