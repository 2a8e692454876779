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

// The methods in this file make Store a space. They keep the tree, the expiry index, the keys
// of leases, the sums and the changes consistent.

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
		s.unindexItem(stored)
		it.key = stored.key
		stored = s.insert(it)
	default:
		s.unindexItem(stored)
		it.key = stored.key
		*stored = it
	}
	s.indexItem(stored)
	s.record(Change{Key: it.key, Value: it.value, Revision: s.revision, Kind: Put, Lease: it.lease})
}

func (s *Store) insert(it item) *item {
	stored := &it
	s.items.Set(it.key, stored)
	s.index[it.key] = stored
	return stored
}

// indexItem adds an item to the sums and to the indexes by deadline and lease.
func (s *Store) indexItem(it *item) {
	s.sum += it.hash()
	s.bytes += int64(len(it.key) + len(it.value))
	if !it.expires() {
		return
	}
	s.timed++
	if it.deadline != 0 {
		s.expiry.Set(expiryEntry{at: it.deadline, key: it.key})
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

// unindexItem is the inverse of note.
func (s *Store) unindexItem(it *item) {
	s.sum -= it.hash()
	s.bytes -= int64(len(it.key) + len(it.value))
	if !it.expires() {
		return
	}
	s.timed--
	if it.deadline != 0 {
		s.expiry.Delete(expiryEntry{at: it.deadline, key: it.key})
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
	s.unindexItem(it)
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

// removeAll removes all keys without changing the tree for each. Leases stay.
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
		s.expiry.Set(expiryEntry{at: l.deadline, lease: id})
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

// count does not visit the keys of span: it takes a few microseconds.
func (s *Store) count(span wire.Span) int {
	end := s.items.Len()
	if span.To != "" {
		end = s.rank(span.To)
	}
	return max(0, end-s.rank(span.From))
}

// rank returns the number of keys smaller than key.
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
		s.expiry.Delete(expiryEntry{at: old.deadline, lease: id})
	}
	s.sum += hashLease(id, l)
	s.expiry.Set(expiryEntry{at: l.deadline, lease: id})
}

func (s *Store) endLease(id uint64, kind ChangeKind) int {
	keys := s.leaseKeys(id)
	for _, key := range keys {
		s.remove(key, kind)
	}
	if old, ok := s.leases.Delete(id); ok {
		s.sum -= hashLease(id, old)
		s.expiry.Delete(expiryEntry{at: old.deadline, lease: id})
	}
	return len(keys)
}

func (s *Store) leaseKeys(id uint64) []string {
	if keys := s.held[id]; keys != nil {
		return keys.Keys()
	}
	return nil
}

// expire removes what has expired, in order of time.
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

// Digest returns a hash of everything that replicas must agree on: keys, values, revisions,
// deadlines, leases, the newest revision and the clock. Equal states have equal digests. It
// takes no time, because each change updates it. It detects errors, not attacks.
func (s *Store) Digest() uint64 {
	return mix(mix(s.sum+s.revision) + uint64(s.clock))
}

func (it *item) hash() uint64 {
	h := mix(xxhash.Sum64String(it.key))
	h = mix(h + xxhash.Sum64(it.value))
	h = mix(h + it.revision)
	if it.expires() {
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
