package kv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
)

const (
	inventoryLooks   = 4    // attempts to read an item that keeps changing
	inventoryPortion = 1000 // keys per request
)

// Inventory reads items like Range, and also their times to live and leases, which Range does
// not return. These are read after the items. An item that was written in between is read
// again, a few times; only one that changes all the time may get the value of one moment and
// the time to live of the next. Items that were deleted in between are left out.
func (s *Session) Inventory(ctx context.Context, from, to string, options ...Option) (items []Item, more bool, err error) {
	weak := make_(wire.Command{}, options).weak
	items, more, err = s.Range(ctx, from, to, options...)
	if err != nil {
		return nil, false, err
	}
	open := make([]int, len(items))
	for i := range items {
		open[i] = i
	}
	gone := make([]bool, len(items))
	for look := range inventoryLooks {
		if len(open) == 0 {
			break
		}
		if look > 0 {
			if err := s.values(ctx, items, open, gone, weak); err != nil {
				return nil, false, err
			}
		}
		var changed []int
		for part := range slices.Chunk(open, inventoryPortion) {
			again, err := s.details(ctx, items, part, gone, weak)
			if err != nil {
				return nil, false, err
			}
			changed = append(changed, again...)
		}
		open = changed
	}
	kept := items[:0]
	for i := range items {
		if !gone[i] {
			kept = append(kept, items[i])
		}
	}
	return kept, more, nil
}

// values reads items again.
func (s *Session) values(ctx context.Context, items []Item, which []int, gone []bool, weak bool) error {
	for _, i := range which {
		r, err := s.Do(ctx, Op{command: wire.Command{Verb: wire.Get, Key: items[i].Key}, weak: weak})
		gone[i] = errors.Is(err, ErrNotFound)
		if err != nil && !gone[i] {
			return err
		}
		items[i].Value, items[i].Revision = r.wire.Value, r.wire.Revision
	}
	return nil
}

// details reads times to live, and then revisions and leases, and returns the items that
// were written since they were read.
func (s *Session) details(ctx context.Context, items []Item, which []int, gone []bool, weak bool) (changed []int, err error) {
	type answer struct {
		at  int
		ttl int64
		err error
	}
	answers := make(chan answer, len(which))
	for _, i := range which {
		op := Op{command: wire.Command{Verb: wire.TTL, Key: items[i].Key}, weak: weak}
		if err := s.begin(ctx, op, func(r Result, err error) { answers <- answer{i, r.wire.Number, err} }); err != nil {
			return nil, err
		}
	}
	for range which {
		select {
		case a := <-answers:
			if a.err != nil {
				return nil, a.err
			}
			items[a.at].TTL = time.Duration(max(a.ttl, 0)) * time.Millisecond
		case <-ctx.Done():
			return nil, fmt.Errorf("kv: times to live: %w", ctx.Err())
		}
	}
	keys := make([]string, len(which))
	for n, i := range which {
		keys[n] = items[i].Key
	}
	r, err := s.Do(ctx, Op{command: wire.Command{Verb: wire.Many, Keys: keys, Options: wire.KeysOnly}, weak: weak})
	if err != nil {
		return nil, err
	}
	if len(r.wire.Results) != len(which) {
		return nil, fmt.Errorf("kv: %d answers for %d keys", len(r.wire.Results), len(which))
	}
	for n, i := range which {
		now := &r.wire.Results[n]
		gone[i] = now.Code == wire.NotFound
		items[i].Lease = now.Lease
		if !gone[i] && now.Revision != items[i].Revision {
			changed = append(changed, i)
		}
	}
	return changed, nil
}
