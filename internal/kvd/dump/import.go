package dump

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/weirdb/weir/kv"
)

// Import imports a dump, which was found to be whole by Check, into a cluster. It may be stopped
// at any time and repeated: existing items are not written again. It reads the whole cluster
// afterwards.
type Import struct {
	Client *kv.Client
	Dump   io.ReadSeeker
	// Overwrite permits a cluster that has other contents: keys of the dump get its values,
	// other keys stay. Without it such a cluster is refused.
	Overwrite bool
	// KeepLeased imports keys that had a lease as keys without one. Without it they are left
	// out, because their leases do not exist here.
	KeepLeased bool
	Patience   time.Duration // the timeout of each request

	skipped int
}

// Report is the result of an import.
type Report struct {
	Summary           // of the dump
	Written    int    `json:"written"`     // keys, by this run
	Same       int    `json:"same"`        // keys that the cluster had already
	Skipped    int    `json:"skipped"`     // keys with a lease, left out
	Gone       int    `json:"gone"`        // keys whose time to live has passed
	Others     int    `json:"others"`      // keys of the cluster that the dump does not have
	ClusterHas string `json:"cluster_has"` // digest of the keys without time to live and lease, read back from the cluster
}

// NotEmptyError says that a cluster is refused because it has other contents than the dump.
type NotEmptyError struct {
	Others, Different int
	Example           string // a key
}

func (e *NotEmptyError) Error() string {
	return fmt.Sprintf("the cluster is not empty: it holds %d keys that the dump does not have, and %d with other values or times to live, such as %q; nothing was written", e.Others, e.Different, e.Example)
}

// Run imports the dump and verifies the result.
func (i *Import) Run(ctx context.Context) (r Report, err error) {
	first, err := i.cluster(ctx).item()
	empty := err == nil && first == nil
	var found comparison
	if err == nil && !empty {
		err = i.compare(ctx, &found)
	}
	if err != nil {
		return r, fmt.Errorf("look at what the cluster holds: %w", err)
	}
	if !i.Overwrite && found.others+found.differ > 0 {
		return r, &NotEmptyError{found.others, found.differ, found.example}
	}
	r.Same = found.same
	if empty || found.absent+found.differ > 0 {
		if r.Written, r.Same, err = i.write(ctx); err != nil {
			return r, err
		}
	}
	left := comparison{sum: newSum(), dump: newSum()}
	if err := i.compare(ctx, &left); err != nil {
		return r, fmt.Errorf("verify: %w", err)
	}
	r.Summary = left.dump.total()
	r.Gone, r.Others, r.Skipped = left.gone, left.others, i.skipped
	r.ClusterHas = left.sum.total().Digest
	switch {
	case left.differ+left.absent > 0 || r.ClusterHas != r.Digest:
		return r, &DifferError{Differ: left.differ, Absent: left.absent, Example: left.example}
	case !i.Overwrite && left.others > 0:
		return r, &DifferError{Others: left.others, Example: left.example}
	}
	return r, nil
}

// DifferError says that the cluster does not contain what was written, because another client
// writes as well.
type DifferError struct {
	Differ, Absent, Others int
	Example                string
}

func (e *DifferError) Error() string {
	return fmt.Sprintf("after the import the cluster holds %d keys with other values or times to live, lacks %d and has %d besides, such as %q: another client writes to it; stop that, and import again", e.Differ, e.Absent, e.Others, e.Example)
}

// rewind starts another pass over the dump.
func (i *Import) rewind() (*Reader, error) {
	if _, err := i.Dump.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read the dump again: %w", err)
	}
	i.skipped = 0
	return NewReader(i.Dump)
}

// next returns the next item to import, nil after the last one.
func (i *Import) next(d *Reader) (*kv.Item, error) {
	for {
		item, err := d.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil, nil
		case err != nil:
			return nil, err
		case item.Lease == 0:
			return item, nil
		case i.KeepLeased:
			item.Lease = 0
			return item, nil
		}
		i.skipped++
	}
}

// comparison is the result of comparing a dump with a cluster.
type comparison struct {
	same, absent, differ, others int
	gone                         int    // absent, and had a time to live
	example                      string // a key that differs
	sum                          *sum   // sums up the keys in the cluster that are in the dump and stay; nil: not wanted
	dump                         *sum   // sums up the dump; nil: not wanted
}

func (c *comparison) note(count *int, key string) {
	*count++
	if c.example == "" {
		c.example = key
	}
}

// compare reads the dump and the cluster in parallel, both by ascending key. An item with a
// time to live may be absent: it is unknown whether it was ever written, which matters only
// before the import.
func (i *Import) compare(ctx context.Context, c *comparison) error {
	d, err := i.rewind()
	if err != nil {
		return err
	}
	cluster := i.cluster(ctx)
	next := func() (*kv.Item, error) {
		item, err := i.next(d)
		if item != nil && c.dump != nil {
			c.dump.Ageless = d.Ageless
			c.dump.add(item)
		}
		return item, err
	}
	want, err := next()
	if err != nil {
		return err
	}
	for {
		have, err := cluster.item()
		if err != nil {
			return err
		}
		switch {
		case want == nil && have == nil:
			return nil
		case want == nil || have != nil && have.Key < want.Key:
			c.note(&c.others, have.Key)
			cluster.step()
			continue
		case have == nil || want.Key < have.Key:
			switch {
			case c.sum == nil:
				c.absent++ // as expected before the import
			case want.TTL != 0:
				c.gone++
			default:
				c.note(&c.absent, want.Key)
			}
		case same(want, have, d.Ageless):
			c.same++
			c.add(want, have)
			cluster.step()
		default:
			c.note(&c.differ, want.Key)
			c.add(want, have)
			cluster.step()
		}
		if want, err = next(); err != nil {
			return err
		}
	}
}

// same reports whether the cluster has an item with the same value as the dump, and also with
// or without a time to live. Its remaining length is not compared. An ageless dump has no such
// information. Keys with a lease never count as the same.
func same(want, have *kv.Item, ageless bool) bool {
	return slices.Equal(want.Value, have.Value) && (ageless || have.Lease == 0 && (want.TTL != 0) == (have.TTL != 0))
}

func (c *comparison) add(want, have *kv.Item) {
	if c.sum != nil && permanent(want) {
		c.sum.digest(have)
	}
}

// cursor iterates over the keys of a cluster.
type cursor struct {
	ctx   context.Context
	i     *Import
	items []kv.Item
	from  string
	more  bool
}

func (i *Import) cluster(ctx context.Context) *cursor { return &cursor{ctx: ctx, i: i, more: true} }

// item returns the current item, nil after the last one.
func (c *cursor) item() (*kv.Item, error) {
	for len(c.items) == 0 {
		if !c.more {
			return nil, nil
		}
		err := within(c.ctx, c.i.Patience, func(ctx context.Context) (err error) {
			c.items, c.more, err = c.i.Client.Inventory(ctx, c.from, "", kv.Limit(page))
			return err
		})
		if err != nil {
			return nil, err
		}
		if n := len(c.items); n > 0 {
			c.from = c.items[n-1].Key + "\x00"
		}
	}
	return &c.items[0], nil
}

func (c *cursor) step() { c.items = c.items[1:] }

const (
	atOnce  = 64        // small writes in flight
	unit    = 256 << 10 // a write of this many bytes counts as one more small write
	goingOn = "what was written stays; give the same command again, and it goes on"
)

// write writes all items that the cluster does not have, many concurrently. It counts again
// what the cluster has: writes of an import that was killed may have arrived since.
func (i *Import) write(ctx context.Context) (written, held int, err error) {
	d, err := i.rewind()
	if err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	var wait sync.WaitGroup
	room := make(chan struct{}, atOnce)
	cluster := i.cluster(ctx)
	for ctx.Err() == nil {
		item, err := i.next(d)
		if err == nil && item != nil {
			var there bool
			if there, err = cluster.holds(item, d.Ageless); there {
				held++
				continue
			}
		}
		if err != nil {
			cancel(err)
		}
		if item == nil || err != nil {
			break
		}
		size := min(1+(len(item.Key)+len(item.Value))/unit, atOnce)
		for range size {
			room <- struct{}{}
		}
		wait.Go(func() {
			err := i.put(ctx, item, d.Ageless)
			for range size {
				<-room
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				cancel(err)
				return
			}
			written++
		})
	}
	wait.Wait()
	if err := context.Cause(ctx); err != nil {
		next := goingOn
		if damaged := new(DamagedError); errors.As(err, &damaged) {
			next = "what was written stays"
		}
		return written, held, fmt.Errorf("after %d keys of this run: %w; %s", written, err, next)
	}
	return written, held, nil
}

// holds reports whether the cluster had the same item when its page was read. Items must be
// ascending by key.
func (c *cursor) holds(want *kv.Item, ageless bool) (bool, error) {
	for {
		have, err := c.item()
		if err != nil || have == nil || have.Key > want.Key {
			return false, err
		}
		if have.Key == want.Key {
			return same(want, have, ageless), nil
		}
		c.step()
	}
}

// put writes an item. Unless Overwrite is set, it does not replace an item that another client
// has written meanwhile.
func (i *Import) put(ctx context.Context, item *kv.Item, ageless bool) error {
	var options []kv.Option
	if item.TTL > 0 {
		options = append(options, kv.TTL(item.TTL))
	}
	if !i.Overwrite {
		options = append(options, kv.IfAbsent())
	}
	return within(ctx, i.Patience, func(ctx context.Context) error {
		_, err := i.Client.Put(ctx, item.Key, item.Value, options...)
		if !errors.Is(err, kv.ErrConflict) {
			return err
		}
		have, _, err := i.Client.Inventory(ctx, item.Key, item.Key+"\x00")
		switch {
		case err != nil:
			return err
		case len(have) == 1 && same(item, &have[0], ageless):
			return nil // a write of an earlier run that arrived late
		}
		return fmt.Errorf("key %q: another client writes to the cluster", item.Key)
	})
}
