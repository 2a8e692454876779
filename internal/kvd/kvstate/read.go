package kvstate

import "github.com/weirdb/weir/internal/kvd/kvwire"

// read answers a valid command that is no write.
func (e *execution) read(c *kvwire.Command) kvwire.Result {
	switch c.Verb {
	case kvwire.Get:
		return e.getOne(c.Key, c.Options)
	case kvwire.Many:
		return e.getMany(c)
	case kvwire.Range:
		return e.scan(c)
	case kvwire.Count:
		return kvwire.Result{Number: int64(e.space.count(kvwire.Span{From: c.Key, To: c.End}))}
	case kvwire.TTL:
		return e.ttl(c)
	case kvwire.LeaseTTL:
		return e.leaseTTL(c)
	}
	return malformed
}

func (e *execution) getOne(key string, options uint8) kvwire.Result {
	it := e.space.get(key)
	if it == nil {
		return kvwire.Result{Code: kvwire.NotFound}
	}
	r := kvwire.Result{Found: true, Revision: it.revision, Lease: it.lease}
	if options&kvwire.KeysOnly != 0 {
		r.Number = int64(len(it.value))
		return r
	}
	if !e.afford(len(it.value)) {
		return kvwire.Result{Code: kvwire.TooLarge}
	}
	r.Value = it.value
	return r
}

func (e *execution) getMany(c *kvwire.Command) kvwire.Result {
	if !e.afford(overhead * len(c.Keys)) {
		return kvwire.Result{Code: kvwire.TooLarge}
	}
	results := make([]kvwire.Result, len(c.Keys))
	for i, key := range c.Keys {
		if results[i] = e.getOne(key, c.Options); results[i].Code == kvwire.TooLarge {
			return results[i]
		}
	}
	return kvwire.Result{Results: results}
}

func (e *execution) scan(c *kvwire.Command) (r kvwire.Result) {
	r.Pairs = make([]kvwire.Pair, 0, min(c.Limit, 256))
	e.space.scan(kvwire.Span{From: c.Key, To: c.End}, c.Options&kvwire.Reverse != 0, func(it *item) bool {
		pair := kvwire.Pair{Key: it.key, Revision: it.revision}
		if c.Options&kvwire.KeysOnly == 0 {
			pair.Value = it.value
		}
		r.More = c.Limit > 0 && uint64(len(r.Pairs)) == c.Limit || !e.afford(overhead+len(it.key)+len(pair.Value))
		if !r.More {
			r.Pairs = append(r.Pairs, pair)
		}
		return !r.More
	})
	return r
}

func (e *execution) ttl(c *kvwire.Command) kvwire.Result {
	it := e.space.get(c.Key)
	switch {
	case it == nil:
		return kvwire.Result{Number: -2}
	case it.deadline == 0:
		return kvwire.Result{Number: -1}
	case c.Options&kvwire.Absolute != 0:
		return kvwire.Result{Number: milliseconds(it.deadline)}
	}
	return kvwire.Result{Number: milliseconds(it.deadline - e.clock)}
}

func (e *execution) leaseTTL(c *kvwire.Command) kvwire.Result {
	l, ok := e.space.lease(c.Lease)
	if !ok {
		return kvwire.Result{Code: kvwire.NotFound}
	}
	r := kvwire.Result{Number: milliseconds(l.deadline - e.clock)}
	if c.Options&kvwire.KeysOnly == 0 {
		return r
	}
	for _, key := range e.space.leaseKeys(c.Lease) {
		if !e.afford(overhead + len(key)) {
			r.More = true
			break
		}
		r.Pairs = append(r.Pairs, kvwire.Pair{Key: key})
	}
	return r
}

// milliseconds rounds up: what is not over yet does not show as 0.
func milliseconds(ns int64) int64 {
	n := ns / 1_000_000
	if ns%1_000_000 > 0 {
		n++
	}
	return n
}

// short holds all forms of one byte: the answers of most writes.
var short = func() (b [128]byte) {
	for i := range b {
		b[i] = byte(i)
	}
	return b
}()

// encode returns r's form in memory of its own, or shared with all answers that
// are one byte long.
func encode(r *kvwire.Result) []byte {
	n := r.Size()
	if n > 1 {
		return r.Append(make([]byte, 0, n))
	}
	var room [1]byte
	form := int(r.Append(room[:0])[0])
	return short[form : form+1 : form+1]
}
