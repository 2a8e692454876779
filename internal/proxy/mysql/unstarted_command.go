package mysql

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file bounds a wait that no queue bounds: weir has a command that neither the server
// executes nor a queue of the pool holds. Its client waits for a connection that is being
// prepared, or for the answer to a query of weir's own on another connection. That takes some
// round trips. If it never ended, the client would wait without an error, so it counts as a
// wait for a connection.

// overdueSlack is how much longer than in a queue such a wait may take, so that a command in a
// queue fails by the queue's timeout.
const overdueSlack = time.Second

var errNotReady = errors.New("the server has not answered what makes the connection ready for a client (--queue-timeout)")

// An unstartedCommand tracks whether the server has started the client's last command.
type unstartedCommand struct {
	c *client

	mark uint64 // bytes that had been written to the client at ...
	at   time.Duration
}

// check refuses a command that was not started within --queue-timeout, although it waits in no
// queue.
func (bg *unstartedCommand) check() {
	c := bg.c
	limit := c.p.Limits.QueueTimeout
	if limit <= 0 || !bg.awaits() || c.s.Written != bg.mark {
		bg.mark, bg.at = c.s.Written, c.l.Now
		return
	}
	if c.l.Now-bg.at <= limit+overdueSlack {
		return
	}
	p := c.p
	p.Stats.Timeouts++
	p.l.srv.Log.Error("a statement was not begun in time", "client", c.addr, "pool", p.key.String(),
		"waiting", c.state == stateWaiting, "probing", c.state.asking(), "linked", c.link != nil, "pins", c.pins.held.String(), "in_use", p.uses())
	e := mywire.NewError(mywire.ErrTooManyConnections,
		"weir: a backend of pool %s was not made ready for this statement within %s (--queue-timeout): %s", p.key, limit, p.uses())
	bg.at = c.l.Now
	if c.state == stateWaiting {
		b := c.fwd.readying
		c.giveUpWaiting(e)
		if b != nil {
			b.s.Close(errNotReady) // the pool would go on without it
		}
		return
	}
	c.fatal(e) // the state of its connection is unknown
}

// awaits reports whether the client has sent a command that is not started.
func (bg *unstartedCommand) awaits() bool {
	c := bg.c
	if c.cur != nil || c.inflight > 0 || c.state.leaving() || c.state == stateSending || c.transport.pass > 0 || c.transport.streams || c.s.Closing || c.link != nil && c.link.Depth() > 0 {
		return false
	}
	if c.state == stateWaiting {
		return true
	}
	_, whole := mywire.Message(c.s.In)
	return whole && len(c.s.In) > 0
}

// giveUpWaiting refuses the command for which the client waits for a backend. A backend that is
// being prepared for it goes to others.
func (c *client) giveUpWaiting(e *mywire.Error) {
	c.state.leave(stateWaiting)
	c.router.stopAwaiting()
	c.fwd.attempt++
	c.cached.Cancel()
	c.p.Excl = slices.DeleteFunc(c.p.Excl, func(w waiter) bool { return w.Client == c })
	c.refuse(e)
}

// uses describes what the pool's connections are busy with.
func (p *pool) uses() string {
	const (
		pinned = iota
		transaction
		statement
		own
		grouped
		shared
		unsaid
	)
	names := [unsaid]string{"with pinned sessions", "in transactions", "with single statements", "made ready or asked by weir", "with groups", "with shared reads"}
	var n [unsaid]int
	for _, b := range p.Backends {
		c := b.owner
		switch {
		case b.Mode == core.ModeFree:
		case b.Mode == core.ModeShared:
			n[shared]++
		case b.Mode == core.ModeLaned:
			n[grouped]++
		case b.Mode == core.ModeOwned && c != nil && c.inTx():
			n[transaction]++
		case b.Mode == core.ModeOwned && c != nil && c.pins.held != 0:
			n[pinned]++
		case b.Mode == core.ModeOwn && b.Head() != nil && b.Head().kind == unitClient, b.Mode == core.ModeOwned:
			n[statement]++
		default:
			n[own]++
		}
	}
	said := []string{fmt.Sprintf("%d of %d are in use", len(p.Backends)-len(p.Free), p.Size)}
	for i, k := range n {
		if k > 0 {
			said = append(said, fmt.Sprintf("%d %s", k, names[i]))
		}
	}
	if p.Dialing > 0 {
		said = append(said, fmt.Sprintf("%d being opened", p.Dialing))
	}
	return strings.Join(said, ", ")
}
