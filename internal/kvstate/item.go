package kvstate

import (
	"math/bits"
	"strings"
	"unsafe"

	"github.com/cespare/xxhash/v2"
	"github.com/tidwall/btree"

	"github.com/weirdb/weir/internal/kvwire"
)

// The methods of this file make Store a space. They keep the tree, the expiry
// index, the leases' keys, the sums and the changes in step.

func (s *Store) get(key string) *item {
	it, _ := s.items.Get(key)
	return it
}

func (s *Store) put(key string, it item, owned bool) {
	key = own(key, &it, owned)
	stored := &it
	if old, replaced := s.items.Set(key, stored); replaced {
		s.forget(key, old)
	}
	s.sum += hashItem(key, stored)
	s.bytes += int64(len(key) + len(it.value))
	s.index(key, stored)
	s.record(Change{Key: key, Value: it.value, Revision: s.revision, Kind: Put, Lease: it.lease})
}

// own returns key in memory of its own, together with the item's value if that
// is not owned yet: one piece of memory for both.
func own(key string, it *item, owned bool) string {
	if owned {
		return strings.Clone(key)
	}
	b := make([]byte, len(key)+len(it.value))
	n := copy(b, key)
	copy(b[n:], it.value)
	it.value = b[n:]
	return unsafe.String(unsafe.SliceData(b), n)
}

// index enters an item into what finds it by deadline and by lease.
func (s *Store) index(key string, it *item) {
	if !it.goesByItself() {
		return
	}
	s.timed++
	if it.deadline != 0 {
		s.expiry.Set(moment{at: it.deadline, key: key})
	}
	if it.lease != 0 {
		keys := s.held[it.lease]
		if keys == nil {
			keys = new(btree.Set[string])
			s.held[it.lease] = keys
		}
		keys.Insert(key)
	}
}

// forget takes an item that is no longer in the tree out of everything else.
func (s *Store) forget(key string, it *item) {
	s.sum -= hashItem(key, it)
	s.bytes -= int64(len(key) + len(it.value))
	if !it.goesByItself() {
		return
	}
	s.timed--
	if it.deadline != 0 {
		s.expiry.Delete(moment{at: it.deadline, key: key})
	}
	if it.lease != 0 {
		keys := s.held[it.lease]
		if keys.Delete(key); keys.Len() == 0 {
			delete(s.held, it.lease)
		}
	}
}

func (s *Store) remove(key string, kind ChangeKind) bool {
	old, ok := s.items.Delete(key)
	if ok {
		s.forget(key, old)
		s.recordGone(key, kind)
	}
	return ok
}

func (s *Store) removeSpan(span kvwire.Span) int {
	if span == (kvwire.Span{}) {
		return s.removeAll()
	}
	var keys []string
	s.scan(span, false, func(key string, _ *item) bool {
		keys = append(keys, key)
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
		s.sum -= hashItem(key, it)
		s.recordGone(key, Deleted)
		return true
	})
	s.items = btree.Map[string, *item]{}
	s.bytes, s.timed = 0, 0
	s.held = make(map[uint64]*btree.Set[string])
	s.expiry.Clear()
	s.leases.Scan(func(id uint64, l lease) bool {
		s.expiry.Set(moment{at: l.deadline, lease: id})
		return true
	})
	return n
}

func (s *Store) scan(span kvwire.Span, reverse bool, fn func(key string, it *item) bool) {
	switch {
	case span.To != "" && span.To <= span.From:
	case !reverse:
		s.items.Ascend(span.From, func(key string, it *item) bool {
			return (span.To == "" || key < span.To) && fn(key, it)
		})
	case span.To == "":
		s.items.Reverse(func(key string, it *item) bool {
			return key >= span.From && fn(key, it)
		})
	default:
		s.items.Descend(span.To, func(key string, it *item) bool {
			return key == span.To || key >= span.From && fn(key, it)
		})
	}
}

func (s *Store) count(span kvwire.Span) int {
	if span == (kvwire.Span{}) {
		return s.items.Len()
	}
	n := 0
	s.scan(span, false, func(string, *item) bool {
		n++
		return true
	})
	return n
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

func hashItem(key string, it *item) uint64 {
	h := mix(xxhash.Sum64String(key))
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
