package kv

import (
	"context"
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Op is one operation, for [Session.Issue] and [Session.Do]. Functions of this
// package create them; Session has methods for the common ones.
type Op struct {
	command wire.Command
	weak    bool
}

// names are the operations in errors, as this package calls them.
var names = map[wire.Verb]string{
	0: "wait", wire.Set: "put", wire.Get: "get", wire.Delete: "delete", wire.Increment: "increment", wire.Range: "range",
	wire.Many: "look at", wire.TTL: "time to live",
	wire.LeaseGrant: "grant", wire.LeaseKeep: "keep", wire.LeaseRevoke: "revoke",
}

func (o Op) name() string { return names[o.command.Verb] }

// key is the key for error messages, shortened if it is long.
func (o Op) key() string {
	const most = 100 // bytes
	key := o.command.Key
	if len(o.command.Keys) > 0 {
		key = o.command.Keys[0]
	}
	if len(key) > most {
		return key[:most] + "…"
	}
	return key
}

// tooLarge returns an error for a key or a value that every replica would refuse.
func (o Op) tooLarge() error {
	longest, value := len(o.command.Key), len(o.command.Value)
	for _, key := range o.command.Keys {
		longest = max(longest, len(key))
	}
	switch {
	case longest > wire.MaxKey:
		return fmt.Errorf("%s %q: %w: a key of %d bytes, at most %d", o.name(), o.key(), ErrTooLarge, longest, wire.MaxKey)
	case value > wire.MaxValue:
		return fmt.Errorf("%s %q: %w: a value of %d bytes, at most %d", o.name(), o.key(), ErrTooLarge, value, wire.MaxValue)
	}
	return nil
}

// Option changes an operation.
type Option func(*Op)

// Weak makes a read answer from the nearest replica, and a write count as done
// as soon as the cluster's preset for weak writes says so. Only writes that
// return nothing may be weak: put, delete, expire.
func Weak() Option { return func(o *Op) { o.weak = true } }

// TTL makes a put key disappear after d, rounded up to milliseconds. With a d that is not
// positive the operation fails.
func TTL(d time.Duration) Option {
	return func(o *Op) {
		if o.command.TTL = milliseconds(d); d <= 0 {
			o.command.TTL = -1 // refused: 0 would mean for ever
		}
	}
}

// milliseconds rounds up.
func milliseconds(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d > time.Duration(ms)*time.Millisecond {
		ms++
	}
	return ms
}

// WithLease attaches a put key to a lease: it disappears with it.
func WithLease(id uint64) Option { return func(o *Op) { o.command.Lease = id } }

// IfAbsent makes a put fail with ErrConflict if the key exists.
func IfAbsent() Option { return func(o *Op) { o.command.Cond = wire.IfAbsent } }

// IfPresent makes a put fail with ErrConflict if the key does not exist.
func IfPresent() Option { return func(o *Op) { o.command.Cond = wire.IfPresent } }

// IfRevision makes a put fail with ErrConflict unless the key was last written
// at revision; 0 means that it must not exist.
func IfRevision(revision uint64) Option {
	return func(o *Op) { o.command.Cond, o.command.Revision = wire.IfRevision, revision }
}

// Limit bounds the items of a range.
func Limit(n int) Option { return func(o *Op) { o.command.Limit = uint64(n) } }

// Reverse makes a range begin at its end.
func Reverse() Option { return func(o *Op) { o.command.Options |= wire.Reverse } }

// KeysOnly leaves the values of a range out.
func KeysOnly() Option { return func(o *Op) { o.command.Options |= wire.KeysOnly } }

func make_(c wire.Command, options []Option) Op {
	if len(options) == 0 {
		return Op{command: c} // which stays on the stack
	}
	o := Op{command: c}
	for _, f := range options {
		f(&o)
	}
	if o.weak && o.command.Verb.IsWrite() {
		o.command.Options |= wire.NoReply
	}
	return o
}

// Put sets key to value.
func Put(key string, value []byte, options ...Option) Op {
	return make_(wire.Command{Verb: wire.Set, Key: key, Value: value}, options)
}

// Get reads key.
func Get(key string, options ...Option) Op {
	return make_(wire.Command{Verb: wire.Get, Key: key}, options)
}

// Delete removes keys; Result.Number is how many existed.
func Delete(keys []string, options ...Option) Op {
	return make_(wire.Command{Verb: wire.Delete, Keys: keys}, options)
}

// Increment adds delta to the integer at key, 0 if absent; Result.Number is the
// sum.
func Increment(key string, delta int64, options ...Option) Op {
	return make_(wire.Command{Verb: wire.Increment, Key: key, Delta: delta}, options)
}

// Range reads the keys from from on, before to; an empty to is the end of all.
func Range(from, to string, options ...Option) Op {
	return make_(wire.Command{Verb: wire.Range, Key: from, End: to}, options)
}

// Wait ends when all writes that the session issued before are committed.
func Wait() Op { return Op{} }

// PrefixEnd is the first key after all keys that begin with prefix, for Range;
// empty if there is none.
func PrefixEnd(prefix string) string {
	b := []byte(prefix)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] < 0xff {
			b[i]++
			return string(b[:i+1])
		}
	}
	return ""
}

// Item is a key with its value.
type Item struct {
	Key      string
	Value    []byte
	Revision uint64 // of the write that set it; 0 for a session's own weak write that is not committed
	Lease    uint64
	TTL      time.Duration // how long it has to live, where it was asked for ([Session.Inventory]); 0: it stays
}

// Result is the answer to an Op.
type Result struct {
	wire wire.Result
	Fast bool // a write that completed in one round trip, by votes
}

// Value is the value that was read.
func (r Result) Value() []byte { return r.wire.Value }

// Number is the count or sum that the operation returns.
func (r Result) Number() int64 { return r.wire.Number }

// Revision is the position of a write among all operations, or of the write
// that set what was read; 0 if it is not known, as for weak writes.
func (r Result) Revision() uint64 { return r.wire.Revision }

// Items are the items of a range, and whether there are more.
func (r Result) Items() (items []Item, more bool) {
	for _, p := range r.wire.Pairs {
		items = append(items, Item{Key: p.Key, Value: p.Value, Revision: p.Revision})
	}
	return items, r.wire.More
}

// Put sets key to value and returns the write's revision, 0 if it is weak or
// completed on votes.
func (s *Session) Put(ctx context.Context, key string, value []byte, options ...Option) (uint64, error) {
	r, err := s.Do(ctx, Put(key, value, options...))
	return r.Revision(), err
}

// Get reads key. The error is ErrNotFound if there is none.
func (s *Session) Get(ctx context.Context, key string, options ...Option) (Item, error) {
	r, err := s.Do(ctx, Get(key, options...))
	if err != nil {
		return Item{}, err
	}
	return Item{Key: key, Value: r.wire.Value, Revision: r.wire.Revision, Lease: r.wire.Lease}, nil
}

// Delete removes key. Deleting what does not exist is no error; a strong delete
// reports whether it existed.
func (s *Session) Delete(ctx context.Context, key string, options ...Option) (existed bool, err error) {
	r, err := s.Do(ctx, Delete([]string{key}, options...))
	return r.Number() > 0, err
}

// CompareAndSwap sets key to value if it was last written at revision (0: if it
// is absent), else it fails with ErrConflict.
func (s *Session) CompareAndSwap(ctx context.Context, key string, revision uint64, value []byte) (uint64, error) {
	return s.Put(ctx, key, value, IfRevision(revision))
}

// Increment adds delta to the integer at key and returns the sum.
func (s *Session) Increment(ctx context.Context, key string, delta int64) (int64, error) {
	r, err := s.Do(ctx, Increment(key, delta))
	return r.Number(), err
}

// Range reads items in the order of their keys.
func (s *Session) Range(ctx context.Context, from, to string, options ...Option) (items []Item, more bool, err error) {
	r, err := s.Do(ctx, Range(from, to, options...))
	if err != nil {
		return nil, false, err
	}
	items, more = r.Items()
	return items, more, nil
}

// Wait returns when all writes that the session issued before are committed:
// on the disks of a majority.
func (s *Session) Wait(ctx context.Context) error {
	_, err := s.Do(ctx, Wait())
	return err
}

// Grant makes a lease that ends when it was not kept for ttl. Its id is also a
// fencing token: later leases have larger ones.
func (s *Session) Grant(ctx context.Context, ttl time.Duration) (id uint64, err error) {
	r, err := s.Do(ctx, Op{command: wire.Command{Verb: wire.LeaseGrant, TTL: milliseconds(ttl)}})
	return uint64(r.Number()), err
}

// Keep makes a lease last for another ttl from now. The error is ErrNotFound if
// it has ended.
func (s *Session) Keep(ctx context.Context, id uint64) error {
	_, err := s.Do(ctx, Op{command: wire.Command{Verb: wire.LeaseKeep, Lease: id}})
	return err
}

// Revoke ends a lease and deletes its keys.
func (s *Session) Revoke(ctx context.Context, id uint64) error {
	_, err := s.Do(ctx, Op{command: wire.Command{Verb: wire.LeaseRevoke, Lease: id}})
	return err
}
