package dump

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/weirdb/weir/internal/kvd/state"
	"github.com/weirdb/weir/internal/kvd/wire"
	"github.com/weirdb/weir/kv"
)

// page is the number of items per request; an answer has at most 16 MB.
const page = 2000

// Export exports the contents of a cluster.
type Export struct {
	Client   *kv.Client
	Head     Head          // Weak: ask the nearest replica, which needs no leader
	Patience time.Duration // the timeout of each request
}

// To writes a dump to w.
func (e *Export) To(ctx context.Context, w io.Writer) (Summary, error) {
	out, err := NewWriter(w, e.Head)
	if err != nil {
		return Summary{}, err
	}
	options := []kv.Option{kv.Limit(page)}
	if e.Head.Weak {
		options = append(options, kv.Weak())
	}
	for from, more := "", true; more; {
		var items []kv.Item
		last := ""
		err := within(ctx, e.Patience, func(ctx context.Context) (err error) {
			items, last, more, err = inventory(ctx, e.Client, from, options)
			return err
		})
		if err != nil {
			return Summary{}, fmt.Errorf("export from %q on: %w", from, err)
		}
		for i := range items {
			if err := out.Add(&items[i]); err != nil {
				return Summary{}, err
			}
		}
		from = last + "\x00"
	}
	return out.Close()
}

// FromStore writes the contents of a stopped replica's store.
func FromStore(s *state.Store, h Head, w io.Writer) (Summary, error) {
	out, err := NewWriter(w, h)
	if err != nil {
		return Summary{}, err
	}
	s.Scan(wire.Span{}, func(key string, it state.Item) bool {
		i := kv.Item{Key: key, Value: it.Value, Revision: it.Revision, Lease: it.Lease}
		if it.Deadline != 0 {
			i.TTL = max(time.Duration(it.Deadline-s.Clock()), time.Millisecond).Round(time.Millisecond)
		}
		err = out.Add(&i)
		return err == nil
	})
	if err != nil {
		return Summary{}, err
	}
	return out.Close()
}

// inventory reads a page. last is where the next page begins, even if all items of this page
// have expired meanwhile.
func inventory(ctx context.Context, c *kv.Client, from string, options []kv.Option) (items []kv.Item, last string, more bool, err error) {
	items, more, err = c.Inventory(ctx, from, "", options...)
	if err != nil || len(items) > 0 || !more {
		if len(items) > 0 {
			last = items[len(items)-1].Key
		}
		return items, last, more, err
	}
	return nil, from, true, nil
}

// within calls do with a timeout.
func within(ctx context.Context, patience time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return do(ctx)
}
