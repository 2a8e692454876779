package pooled

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirdb/weir/outbox"
)

// pool is a pooler of some connections; size 0 gives each session its own.
type pool struct {
	size, turn, opened int
	lent               map[int]bool // to transactions
	fail               error
	latest             []int // of a pooler that lends what came back last; the last one is busy at first
	processes          int   // each with a connection of its own
	all                int   // sessions so far
}

type client struct {
	*pool
	own int
}

func (p *pool) open(context.Context) (Session, error) {
	p.opened++
	p.all++
	return &client{p, p.all}, nil
}

// next is a connection that no transaction holds, or an error where there is none.
func (c *client) next() (int64, error) {
	if c.processes > 0 {
		return int64(c.own % c.processes), c.fail
	}
	if c.size == 0 {
		return int64(c.own), c.fail
	}
	if c.latest != nil {
		return c.top(), c.fail
	}
	for range c.size {
		if c.turn = (c.turn + 1) % c.size; !c.lent[c.turn] {
			return int64(c.turn), c.fail
		}
	}
	return 0, errors.New("no free connection")
}

// top is the connection that came back last of those that no transaction holds.
func (p *pool) top() int64 {
	first := p.turn == 0
	p.turn++
	for i, n := range slices.Backward(p.latest) {
		if !p.lent[n] && !(first && i == len(p.latest)-1) {
			p.back(n)
			if first { // the busy one is back, too
				p.back(p.latest[len(p.latest)-2])
			}
			return int64(n)
		}
	}
	return -1
}

// back notes that a connection is the one that came back last.
func (p *pool) back(n int) {
	p.latest = append(slices.DeleteFunc(p.latest, func(m int) bool { return m == n }), n)
}

func (c *client) Number(context.Context) (int64, error) { return c.next() }

func (c *client) Begin(context.Context) (Tx, error) {
	n, err := c.next()
	if c.size > 0 || c.processes > 0 {
		c.lent[int(n)] = true
	}
	return &tx{c, n}, err
}

func (c *client) Close() { c.opened-- }

type tx struct {
	*client
	n int64
}

func (t *tx) Number(context.Context) (int64, error) { return t.n, nil }

func (t *tx) Rollback(context.Context) error {
	delete(t.lent, int(t.n))
	if t.latest != nil {
		t.back(int(t.n))
	}
	return nil
}

func answer(path Path, err error) func(context.Context) (Path, error) {
	return func(context.Context) (Path, error) { return path, err }
}

func TestPoolersAreSeen(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct {
		name string
		pool pool
		want error
		look func(context.Context) (Path, error)
	}{
		{"none", pool{}, nil, nil},
		{"of one", pool{size: 1}, outbox.ErrPooled, nil},
		{"of two", pool{size: 2}, outbox.ErrPooled, nil},
		{"of three", pool{size: 3}, outbox.ErrPooled, nil},
		{"of eight", pool{size: 8}, outbox.ErrPooled, nil},
		{"of two, the latest first", pool{size: 2, latest: []int{1, 2}}, outbox.ErrPooled, nil},
		{"of four, the latest first", pool{size: 4, latest: []int{1, 2, 3, 4}}, outbox.ErrPooled, nil},
		{"none, as the first session shows", pool{fail: broken}, nil, answer(Direct, nil)},
		{"one, of which the first session does not tell", pool{size: 1}, outbox.ErrPooled, answer(Unknown, nil)},
		{"of eight processes", pool{processes: 8}, outbox.ErrPooled, answer(Pooler, nil)},
		{"of sessions", pool{}, nil, answer(Pooler, nil)},
		{"one that says so", pool{}, outbox.ErrPooled, answer(Pooler, outbox.ErrPooled)},
		{"none whose first session answers", pool{}, broken, answer(Unknown, broken)},
		{"none that answers", pool{fail: broken}, broken, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := tt.pool
			p.lent = map[int]bool{}
			var c Check
			if err := c.Run(t.Context(), tt.look, p.open); !errors.Is(err, tt.want) {
				t.Errorf("check: %v, want %v", err, tt.want)
			}
			if p.opened != 0 || len(p.lent) != 0 {
				t.Errorf("%d sessions and %d transactions are left open", p.opened, len(p.lent))
			}
			// A known answer is not asked for again, and an error is not known.
			p.fail = broken
			if err := c.Run(t.Context(), tt.look, p.open); (err == nil) != (tt.want == nil) {
				t.Errorf("again: %v", err)
			}
		})
	}
}

// A pooler that the check missed may be found later; then the relay stops leading.
func TestPoolersAreSeenLater(t *testing.T) {
	var c Check
	if err := errors.Join(c.Run(t.Context(), answer(Direct, nil), nil), c.Err()); err != nil {
		t.Fatal(err)
	}
	c.Moved()
	for _, err := range []error{c.Run(t.Context(), answer(Direct, nil), nil), c.Err()} {
		if !errors.Is(err, outbox.ErrPooled) {
			t.Errorf("after a session has moved: %v", err)
		}
	}
}

// A relay behind a pooler to which a login takes long starts all the same.
func TestSlowLogins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pool{}
		slow := func(ctx context.Context) (Session, error) {
			time.Sleep(2 * time.Second)
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			return p.open(ctx)
		}
		var c Check
		if err := c.Run(t.Context(), answer(Pooler, nil), slow); err != nil {
			t.Error(err)
		}
	})
}
