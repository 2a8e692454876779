package state

import "github.com/weirdb/weir/internal/kvd/wire"

// read executes a valid read.
func (e *execution) read(c *wire.Command) wire.Result {
	switch c.Verb {
	case wire.Get:
		return e.getOne(c.Key, c.Options)
	case wire.Many:
		return e.getMany(c)
	case wire.Range:
		return e.scan(c)
	case wire.Count:
		return wire.Result{Number: int64(e.space.count(wire.Span{From: c.Key, To: c.End}))}
	case wire.TTL:
		return e.ttl(c)
	case wire.LeaseTTL:
		return e.leaseTTL(c)
	}
	return malformed
}

func (e *execution) getOne(key string, options uint8) wire.Result {
	it := e.space.get(key)
	if it == nil {
		return wire.Result{Code: wire.NotFound}
	}
	r := wire.Result{Found: true, Revision: it.revision, Lease: it.lease}
	if options&wire.KeysOnly != 0 {
		r.Number = int64(len(it.value))
		return r
	}
	if !e.reserve(len(it.value)) {
		return wire.Result{Code: wire.TooLarge}
	}
	r.Value = it.value
	return r
}

func (e *execution) getMany(c *wire.Command) wire.Result {
	if !e.reserve(overhead * len(c.Keys)) {
		return wire.Result{Code: wire.TooLarge}
	}
	results := make([]wire.Result, len(c.Keys))
	for i, key := range c.Keys {
		if results[i] = e.getOne(key, c.Options); results[i].Code == wire.TooLarge {
			return results[i]
		}
	}
	return wire.Result{Results: results}
}

func (e *execution) scan(c *wire.Command) (r wire.Result) {
	r.Pairs = make([]wire.Pair, 0, min(c.Limit, 256))
	e.space.scan(wire.Span{From: c.Key, To: c.End}, c.Options&wire.Reverse != 0, func(it *item) bool {
		pair := wire.Pair{Key: it.key, Revision: it.revision}
		if c.Options&wire.KeysOnly == 0 {
			pair.Value = it.value
		}
		r.More = c.Limit > 0 && uint64(len(r.Pairs)) == c.Limit || !e.reserve(overhead+len(it.key)+len(pair.Value))
		if !r.More {
			r.Pairs = append(r.Pairs, pair)
		}
		return !r.More
	})
	return r
}

func (e *execution) ttl(c *wire.Command) wire.Result {
	it := e.space.get(c.Key)
	switch {
	case it == nil:
		return wire.Result{Number: -2}
	case it.deadline == 0:
		return wire.Result{Number: -1}
	case c.Options&wire.Absolute != 0:
		return wire.Result{Number: milliseconds(it.deadline)}
	}
	return wire.Result{Number: milliseconds(it.deadline - e.clock)}
}

func (e *execution) leaseTTL(c *wire.Command) wire.Result {
	l, ok := e.space.lease(c.Lease)
	if !ok {
		return wire.Result{Code: wire.NotFound}
	}
	r := wire.Result{Number: milliseconds(l.deadline - e.clock)}
	if c.Options&wire.KeysOnly == 0 {
		return r
	}
	for _, key := range e.space.leaseKeys(c.Lease) {
		if !e.reserve(overhead + len(key)) {
			r.More = true
			break
		}
		r.Pairs = append(r.Pairs, wire.Pair{Key: key})
	}
	return r
}

// milliseconds rounds up, so that what has not expired yet does not show 0.
func milliseconds(ns int64) int64 {
	n := ns / 1_000_000
	if ns%1_000_000 > 0 {
		n++
	}
	return n
}

// short has all encodings of one byte: the results of most writes.
var short = func() (b [128]byte) {
	for i := range b {
		b[i] = byte(i)
	}
	return b
}()

// encode returns the encoding of r. Encodings of one byte are shared.
func encode(r *wire.Result) []byte {
	n := r.Size()
	if n > 1 {
		return r.Append(make([]byte, 0, n))
	}
	var room [1]byte
	form := int(r.Append(room[:0])[0])
	return short[form : form+1 : form+1]
}
