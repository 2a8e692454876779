package pooled

import (
	"context"
	"errors"
	"testing"

	"github.com/weirdb/weir/outbox"
)

// pool is a pooler of some connections; size 0 gives each session its own.
type pool struct {
	size, turn, opened int
	lent               map[int]bool // to transactions
	fail               error
}

type client struct {
	*pool
	own int
}

func (p *pool) open(context.Context) (Session, error) {
	p.opened++
	return &client{p, p.opened}, nil
}

// next is a connection that no transaction holds, or an error where there is none.
func (c *client) next() (int64, error) {
	if c.size == 0 {
		return int64(c.own), c.fail
	}
	for range c.size {
		if c.turn = (c.turn + 1) % c.size; !c.lent[c.turn] {
			return int64(c.turn), c.fail
		}
	}
	return 0, errors.New("no free connection")
}

func (c *client) Number(context.Context) (int64, error) { return c.next() }

func (c *client) Begin(context.Context) (Tx, error) {
	n, err := c.next()
	if c.size > 0 {
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
	return nil
}

func TestPoolersAreSeen(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct {
		name string
		pool pool
		want error
	}{
		{"none", pool{}, nil},
		{"of one", pool{size: 1}, outbox.ErrPooled},
		{"of two", pool{size: 2}, outbox.ErrPooled},
		{"of three", pool{size: 3}, outbox.ErrPooled},
		{"of eight", pool{size: 8}, outbox.ErrPooled},
		{"none that answers", pool{fail: broken}, broken},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := tt.pool
			p.lent = map[int]bool{}
			var c Check
			if err := c.Run(t.Context(), p.open); !errors.Is(err, tt.want) {
				t.Errorf("check: %v, want %v", err, tt.want)
			}
			if p.opened != 0 || len(p.lent) != 0 {
				t.Errorf("%d sessions and %d transactions are left open", p.opened, len(p.lent))
			}
			// What is known is not asked for again, and an error is not known.
			p.fail = broken
			if err := c.Run(t.Context(), p.open); (err == nil) != (tt.want == nil) {
				t.Errorf("again: %v", err)
			}
		})
	}
}
