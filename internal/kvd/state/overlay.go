package state

import (
	"slices"

	"github.com/tidwall/btree"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Evaluate returns the result of command, a read or a write, as if writes had been applied
// before it and the log's clock were at now (Unix nanoseconds; the store's clock if that is
// later). It changes nothing, and its cost depends on command and writes only, not on the size
// of the store. The result may be shared, like that of Apply.
//
// The operations have no revisions yet. So keys that they store have revision 0, a condition on
// the revision of such a key does not hold, and LeaseGrant returns 0. Apart from that, and at
// the same clock, the result is that of Apply. For a write whose footprint is Fixed it is the
// same byte for byte.
func (s *Store) Evaluate(now int64, writes [][]byte, command []byte) (result []byte) {
	o := &s.above
	o.begin(s, max(now, s.clock))
	defer o.end()
	for _, write := range writes {
		if len(write) > 0 && s.parse(write) {
			s.direct.begin(o, o.now, 0, s.format)
			s.direct.run(&s.command)
		}
	}
	if !s.parse(command) {
		return encode(&malformed)
	}
	o.last = s.command.Verb != wire.Transaction
	s.direct.begin(o, o.now, 0, s.format)
	r := s.direct.run(&s.command)
	if s.command.Verb == wire.Many && s.command.Options&wire.KeysOnly != 0 && r.Code == wire.OK {
		r.Revision = s.revision
	}
	return encode(&r)
}

// overlay is a space above a Store, which it does not change: the Store at a later time, with
// some changes. Its contents are valid as long as the commands that put them there.
type overlay struct {
	base    *Store
	now     int64
	stale   bool                      // base has items that have expired at now
	changed btree.Map[string, *item]  // nil: removed
	erased  []wire.Span               // of base
	leases  btree.Map[uint64, *lease] // nil: ended
	last    bool                      // nothing that is put from now on is read
}

func (o *overlay) begin(base *Store, now int64) {
	due := base.Due()
	o.base, o.now, o.stale, o.last = base, now, due != 0 && due <= now, false
}

func (o *overlay) end() {
	if o.changed.Len() > 0 || o.leases.Len() > 0 || len(o.erased) > 0 {
		*o = overlay{}
	}
}

// visible returns it, an item of base, or nil if it has expired or was erased.
func (o *overlay) visible(it *item) *item {
	if o.stale && it.expires() {
		if it.deadline != 0 && it.deadline <= o.now {
			return nil
		}
		if l, ok := o.base.leases.Get(it.lease); ok && l.deadline <= o.now {
			return nil
		}
	}
	for _, span := range o.erased {
		if span.Holds(it.key) {
			return nil
		}
	}
	return it
}

func (o *overlay) get(key string) *item {
	if o.changed.Len() > 0 {
		if it, ok := o.changed.Get(key); ok {
			return it
		}
	}
	it := o.base.index[key]
	if it == nil {
		return nil
	}
	return o.visible(it)
}

func (o *overlay) put(key string, it item, _ bool) {
	if !o.last {
		it.key = key
		o.store(it)
	}
}

func (o *overlay) store(it item) {
	o.changed.Set(it.key, &it)
}

func (o *overlay) remove(key string, _ ChangeKind) bool {
	if o.get(key) == nil {
		return false
	}
	o.changed.Set(key, nil)
	return true
}

func (o *overlay) removeSpan(span wire.Span) int {
	n := o.count(span)
	for _, c := range o.changesIn(span) {
		o.changed.Delete(c.key)
	}
	o.erased = append(o.erased, span)
	return n
}

// changedItem is an entry of overlay.changed.
type changedItem struct {
	key string
	it  *item
}

func (o *overlay) changesIn(span wire.Span) (list []changedItem) {
	o.changed.Ascend(span.From, func(key string, it *item) bool {
		inside := span.To == "" || key < span.To
		if inside {
			list = append(list, changedItem{key, it})
		}
		return inside
	})
	return list
}

// scan merges the changed items into those of base.
func (o *overlay) scan(span wire.Span, reverse bool, fn func(it *item) bool) {
	changes := o.changesIn(span)
	if reverse {
		slices.Reverse(changes)
	}
	more := true
	// until yields the changed items before key, and reports whether key itself was changed.
	until := func(key string) bool {
		for more && len(changes) > 0 && changes[0].key != key && (changes[0].key < key) != reverse {
			if changes[0].it != nil {
				more = fn(changes[0].it)
			}
			changes = changes[1:]
		}
		return len(changes) > 0 && changes[0].key == key
	}
	o.base.scan(span, reverse, func(it *item) bool {
		if until(it.key) {
			it, changes = changes[0].it, changes[1:]
		} else {
			it = o.visible(it)
		}
		if more && it != nil {
			more = fn(it)
		}
		return more
	})
	for _, c := range changes {
		if more && c.it != nil {
			more = fn(c.it)
		}
	}
}

func (o *overlay) count(span wire.Span) int {
	if !o.stale && o.changed.Len() == 0 && len(o.erased) == 0 {
		return o.base.count(span)
	}
	n := 0
	o.scan(span, false, func(*item) bool {
		n++
		return true
	})
	return n
}

func (o *overlay) lease(id uint64) (lease, bool) {
	if l, ok := o.leases.Get(id); ok {
		if l == nil {
			return lease{}, false
		}
		return *l, true
	}
	l, ok := o.base.leases.Get(id)
	return l, ok && l.deadline > o.now
}

func (o *overlay) setLease(id uint64, l lease) {
	o.leases.Set(id, &l)
}

func (o *overlay) endLease(id uint64, kind ChangeKind) int {
	keys := o.leaseKeys(id)
	for _, key := range keys {
		o.remove(key, kind)
	}
	o.leases.Set(id, nil)
	return len(keys)
}

func (o *overlay) leaseKeys(id uint64) []string {
	var keys []string
	for _, key := range o.base.leaseKeys(id) {
		if _, ok := o.changed.Get(key); ok {
			continue
		}
		if it := o.get(key); it != nil {
			keys = append(keys, key)
		}
	}
	o.changed.Scan(func(key string, it *item) bool {
		if it != nil && it.lease == id {
			keys = append(keys, key)
		}
		return true
	})
	slices.Sort(keys)
	return keys
}
