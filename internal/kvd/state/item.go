package state

import (
	"bytes"
	"math/bits"
	"sort"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/tidwall/btree"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// The methods of this file make Store a space. They keep the tree, the expiry
// index, the leases' keys, the sums and the changes in step.

func (s *Store) get(key string) *item {
	return s.index[key]
}

func (s *Store) put(key string, it item, owned bool) {
	if !owned {
		it.value = bytes.Clone(it.value)
	}
	it.epoch = s.epoch
	stored := s.index[key]
	switch {
	case stored == nil:
		it.key = strings.Clone(key)
		stored = s.insert(it)
	case stored.epoch != s.epoch:
		s.forget(stored)
		it.key = stored.key
		stored = s.insert(it)
	default:
		s.forget(stored)
		it.key = stored.key
		*stored = it
	}
	s.note(stored)
	s.record(Change{Key: it.key, Value: it.value, Revision: s.revision, Kind: Put, Lease: it.lease})
}

func (s *Store) insert(it item) *item {
	stored := &it
	s.items.Set(it.key, stored)
	s.index[it.key] = stored
	return stored
}

// note enters an item into the sums and into what finds it by deadline and by
// lease.
func (s *Store) note(it *item) {
	s.sum += it.hash()
	s.bytes += int64(len(it.key) + len(it.value))
	if !it.goesByItself() {
		return
	}
	s.timed++
	if it.deadline != 0 {
		s.expiry.Set(moment{at: it.deadline, key: it.key})
	}
	if it.lease != 0 {
		keys := s.held[it.lease]
		if keys == nil {
			keys = new(btree.Set[string])
			s.held[it.lease] = keys
		}
		keys.Insert(it.key)
	}
}

// forget is the reverse of note.
func (s *Store) forget(it *item) {
	s.sum -= it.hash()
	s.bytes -= int64(len(it.key) + len(it.value))
	if !it.goesByItself() {
		return
	}
	s.timed--
	if it.deadline != 0 {
		s.expiry.Delete(moment{at: it.deadline, key: it.key})
	}
	if it.lease != 0 {
		keys := s.held[it.lease]
		if keys.Delete(it.key); keys.Len() == 0 {
			delete(s.held, it.lease)
		}
	}
}

func (s *Store) remove(key string, kind ChangeKind) bool {
	it := s.index[key]
	if it == nil {
		return false
	}
	s.items.Delete(key)
	delete(s.index, key)
	s.forget(it)
	s.record(Change{Key: it.key, Revision: s.revision, Kind: kind})
	return true
}

func (s *Store) removeSpan(span wire.Span) int {
	if span == (wire.Span{}) {
		return s.removeAll()
	}
	var keys []string
	s.scan(span, false, func(it *item) bool {
		keys = append(keys, it.key)
		return true
	})
	for _, key := range keys {
		s.remove(key, Deleted)
	}
	return len(keys)
}

// removeAll removes all keys without touching the tree for each. Leases stay.
func (s *Store) removeAll() int {
	n := s.items.Len()
	s.items.Scan(func(key string, it *item) bool {
		s.sum -= it.hash()
		s.record(Change{Key: key, Revision: s.revision, Kind: Deleted})
		return true
	})
	s.items = btree.Map[string, *item]{}
	s.index = make(map[string]*item)
	s.bytes, s.timed = 0, 0
	s.held = make(map[uint64]*btree.Set[string])
	s.expiry.Clear()
	s.leases.Scan(func(id uint64, l lease) bool {
		s.expiry.Set(moment{at: l.deadline, lease: id})
		return true
	})
	return n
}

func (s *Store) scan(span wire.Span, reverse bool, fn func(it *item) bool) {
	switch {
	case span.To != "" && span.To <= span.From:
	case !reverse:
		s.items.Ascend(span.From, func(key string, it *item) bool {
			return (span.To == "" || key < span.To) && fn(it)
		})
	case span.To == "":
		s.items.Reverse(func(key string, it *item) bool {
			return key >= span.From && fn(it)
		})
	default:
		s.items.Descend(span.To, func(key string, it *item) bool {
			return key == span.To || key >= span.From && fn(it)
		})
	}
}

// count does not look at the keys of span: it takes a few microseconds.
func (s *Store) count(span wire.Span) int {
	end := s.items.Len()
	if span.To != "" {
		end = s.rank(span.To)
	}
	return max(0, end-s.rank(span.From))
}

// rank returns how many keys are smaller than key.
func (s *Store) rank(key string) int {
	if key == "" {
		return 0
	}
	return sort.Search(s.items.Len(), func(i int) bool {
		k, _, _ := s.items.GetAt(i)
		return k >= key
	})
}

func (s *Store) lease(id uint64) (lease, bool) {
	return s.leases.Get(id)
}

func (s *Store) setLease(id uint64, l lease) {
	if old, replaced := s.leases.Set(id, l); replaced {
		s.sum -= hashLease(id, old)
		s.expiry.Delete(moment{at: old.deadline, lease: id})
	}
	s.sum += hashLease(id, l)
	s.expiry.Set(moment{at: l.deadline, lease: id})
}

func (s *Store) endLease(id uint64, kind ChangeKind) int {
	keys := s.leaseKeys(id)
	for _, key := range keys {
		s.remove(key, kind)
	}
	if old, ok := s.leases.Delete(id); ok {
		s.sum -= hashLease(id, old)
		s.expiry.Delete(moment{at: old.deadline, lease: id})
	}
	return len(keys)
}

func (s *Store) leaseKeys(id uint64) []string {
	if keys := s.held[id]; keys != nil {
		return keys.Keys()
	}
	return nil
}

// expire removes all that is due, in the order of its moments.
func (s *Store) expire() {
	for {
		first, ok := s.expiry.Min()
		if !ok || first.at > s.clock {
			return
		}
		if first.lease != 0 {
			s.endLease(first.lease, Expired)
		} else {
			s.remove(first.key, Expired)
		}
	}
}

// Digest returns a number that depends on everything that replicas must agree
// on: keys, values, revisions, deadlines, leases, the newest revision and the
// clock. Equal states have equal digests; it costs nothing, because each
// change updates it. It finds mistakes, not malice.
func (s *Store) Digest() uint64 {
	return mix(mix(s.sum+s.revision) + uint64(s.clock))
}

func (it *item) hash() uint64 {
	h := mix(xxhash.Sum64String(it.key))
	h = mix(h + xxhash.Sum64(it.value))
	h = mix(h + it.revision)
	if it.goesByItself() {
		h = mix(h + uint64(it.deadline))
		h = mix(h + it.lease)
	}
	return h
}

func hashLease(id uint64, l lease) uint64 {
	return mix(mix(mix(^id)+uint64(l.ttl)) + uint64(l.deadline))
}

// mix spreads every bit of v over all bits of the result.
func mix(v uint64) uint64 {
	hi, lo := bits.Mul64(v^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	hi2, lo2 := bits.Mul64(hi^lo, 0xa0761d6478bd642f)
	return hi2 ^ lo2
}
