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

// Import writes a dump into a cluster. It may be stopped at any moment, and begun again:
// what is there already is not written again. It looks at all of the dump before it
// writes anything, and at all of the cluster afterwards.
type Import struct {
	Client *kv.Client
	Dump   io.ReadSeeker
	// Overwrite permits a cluster that holds something else: keys of the dump get its
	// values, others stay. Without it such a cluster is refused.
	Overwrite bool
	// KeepLeased writes keys that went with a lease, as keys that stay. Without it they
	// are left out: their lease is not that of anybody here.
	KeepLeased bool
	Patience   time.Duration // for each answer

	skipped int
}

// Report is what an import did.
type Report struct {
	Summary           // of the dump, as it was asked for
	Written    int    `json:"written"`     // keys, by this run
	Same       int    `json:"same"`        // keys that the cluster held already
	Skipped    int    `json:"skipped"`     // keys of leases, left out
	Gone       int    `json:"gone"`        // keys with a time to live whose time is over
	Others     int    `json:"others"`      // keys of the cluster that the dump does not have
	ClusterHas string `json:"cluster_has"` // digest of the keys that stay, read back from the cluster
}

// NotEmptyError is why a cluster is refused: it holds what the dump does not.
type NotEmptyError struct {
	Others, Different int
	Example           string // a key
}

func (e *NotEmptyError) Error() string {
	return fmt.Sprintf("the cluster is not empty: it holds %d keys that the dump does not have, and %d with other values or times to live, such as %q; nothing was written", e.Others, e.Different, e.Example)
}

// Run imports, and verifies.
func (i *Import) Run(ctx context.Context) (r Report, err error) {
	if r.Summary, err = i.check(); err != nil {
		return r, err
	}
	var found comparison
	if err := i.compare(ctx, &found); err != nil {
		return r, fmt.Errorf("look at what the cluster holds: %w", err)
	}
	if !i.Overwrite && found.others+found.differ > 0 {
		return r, &NotEmptyError{found.others, found.differ, found.example}
	}
	r.Same = found.same
	if found.absent+found.differ > 0 {
		if r.Written, r.Same, err = i.write(ctx); err != nil {
			return r, err
		}
	}
	var left comparison
	left.sum = newSum()
	if err := i.compare(ctx, &left); err != nil {
		return r, fmt.Errorf("verify: %w", err)
	}
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

// DifferError says that the cluster does not hold what was written: another client writes,
// too.
type DifferError struct {
	Differ, Absent, Others int
	Example                string
}

func (e *DifferError) Error() string {
	return fmt.Sprintf("after the import the cluster holds %d keys with other values or times to live, lacks %d and has %d besides, such as %q: another client writes to it; stop that, and import again", e.Differ, e.Absent, e.Others, e.Example)
}

// rewind begins a pass over the dump.
func (i *Import) rewind() (*Reader, error) {
	if _, err := i.Dump.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read the dump again: %w", err)
	}
	i.skipped = 0
	return NewReader(i.Dump)
}

// next is the next item to import, nil after the last one.
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

// check reads all of the dump.
func (i *Import) check() (Summary, error) {
	d, err := i.rewind()
	if err != nil {
		return Summary{}, err
	}
	s := newSum()
	for {
		item, err := i.next(d)
		if err != nil {
			return Summary{}, err
		}
		if item == nil {
			s.Ageless = d.Ageless
			return s.total(), nil
		}
		s.add(item)
	}
}

// comparison is of a dump with a cluster.
type comparison struct {
	same, absent, differ, others int
	gone                         int    // absent, and have had a time to live
	example                      string // of what is not as it should be
	sum                          *sum   // of what the cluster has of the dump's keys that stay; nil: not asked for
}

func (c *comparison) note(count *int, key string) {
	*count++
	if c.example == "" {
		c.example = key
	}
}

// compare walks over the dump and the cluster, both by rising key. An item with a time to
// live may be gone: whether it was ever written is not known, which matters only before
// the import.
func (i *Import) compare(ctx context.Context, c *comparison) error {
	d, err := i.rewind()
	if err != nil {
		return err
	}
	cluster := &cursor{ctx: ctx, i: i, more: true}
	want, err := i.next(d)
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
				c.absent++ // as it is to be before the import
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
		if want, err = i.next(d); err != nil {
			return err
		}
	}
}

// same reports that the cluster holds an item as the dump has it: with its value, and
// with or without a time to live, which runs, so that its length is not compared. An
// ageless dump does not tell that. A key of a lease goes with it, whatever it holds.
func same(want, have *kv.Item, ageless bool) bool {
	return slices.Equal(want.Value, have.Value) && (ageless || have.Lease == 0 && (want.TTL != 0) == (have.TTL != 0))
}

func (c *comparison) add(want, have *kv.Item) {
	if c.sum != nil && stays(want) {
		c.sum.digest(have)
	}
}

// cursor walks over the keys of a cluster.
type cursor struct {
	ctx   context.Context
	i     *Import
	items []kv.Item
	from  string
	more  bool
}

// item is the one at hand, nil behind the last.
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
	atOnce  = 64        // writes under way, where they are small
	unit    = 256 << 10 // bytes of which each takes the place of a small write
	goingOn = "what was written stays; give the same command again, and it goes on"
)

// write puts all items that the cluster does not hold, many at once. It counts what the
// cluster holds anew: writes of an import that was killed may have come through since.
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
	cluster := &cursor{ctx: ctx, i: i, more: true}
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
		return written, held, fmt.Errorf("after %d keys of this run: %w; %s", written, err, goingOn)
	}
	return written, held, nil
}

// holds reports that the cluster had the same item when its page was read. Items arrive
// by rising key.
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

// put writes an item. Without leave to overwrite it does not take the place of one that
// somebody has written meanwhile.
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
			return nil // an earlier run's write that came through late
		}
		return fmt.Errorf("key %q: another client writes to the cluster", item.Key)
	})
}
