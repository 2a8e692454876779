package outbox

import "hash/maphash"

// sieve knows keys, and takes some others for known: with a million keys one in five.
type sieve struct {
	seed maphash.Seed
	bits [1 << (sieveBits - 6)]uint64
}

const sieveBits = 22 // half a MiB

func newSieve() *sieve { return &sieve{seed: maphash.MakeSeed()} }

func (s *sieve) place(key string) (word *uint64, bit uint64) {
	h := maphash.String(s.seed, key) >> (64 - sieveBits)
	return &s.bits[h>>6], 1 << (h & 63)
}

func (s *sieve) add(key string) {
	word, bit := s.place(key)
	*word |= bit
}

func (s *sieve) has(key string) bool {
	word, bit := s.place(key)
	return *word&bit != 0
}

// crowded reports whether as many messages wait as memory may know of. Those whose part of
// the broker is away, perhaps for long, leave a quarter of it to others.
func (n *lane) crowded(away bool) bool {
	most := int64(n.cfg.MaxWaiting)
	if away {
		most -= most / 4
	}
	return n.waits.Load() >= most
}

// hasSpilled reports whether a row of the same key was dropped: it must not overtake
// that.
func (n *lane) hasSpilled(row *Row) bool {
	return n.spilled != nil && row.Key != "" && !n.cfg.Unordered && n.spilled.has(row.Key)
}

// spill drops a row from memory; it stays pending in the table. The leadership
// begins again when there is room, or a destination takes messages again, and
// reads the table from its first pending row: see refill.
func (n *lane) spill(row Row) {
	if n.spilled == nil {
		n.spilled = newSieve()
	}
	if row.Key != "" {
		n.spilled.add(row.Key)
	}
	if n.spills.Add(1) == 1 {
		n.log.Warn("more messages wait than memory shall know of: the rest stays in the table until some are delivered", "waiting", n.waits.Load())
	}
	n.release([]int64{row.Seq}, len(row.Payload), true)
}
