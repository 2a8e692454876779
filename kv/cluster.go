package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// Replicas lists the replicas that are connected, by id, and the reasons why
// others are not, by address.
func (c *Client) Replicas() (up map[uint64]string, down map[string]error) {
	up, down = map[uint64]string{}, map[string]error{}
	for _, l := range c.linked() {
		l.mu.Lock()
		if l.conn != nil {
			up[l.id] = l.addr
		} else {
			down[l.addr] = l.err
		}
		l.mu.Unlock()
	}
	return up, down
}

// Inspect asks a replica for its state. The JSON is that of weir kv status.
func (c *Client) Inspect(ctx context.Context, replica uint64) (json.RawMessage, error) {
	m, err := c.request(ctx, replica, wire.Message{Kind: wire.Inspect})
	return m.Data, err
}

// Member is a replica of the cluster.
type Member = wire.Member

// Change of the members, for Configure.
type (
	MemberChange = wire.MemberChange
	MemberVerb   = wire.MemberVerb
)

// Verbs of a MemberChange.
const (
	AddLearner = wire.AddLearner
	Promote    = wire.Promote
	Remove     = wire.Remove
	Replace    = wire.Replace
	Transfer   = wire.Transfer
)

// Configure changes the members of the cluster and returns when the change is in force; a
// transfer, when the new leader itself confirms it. A change that is already in force is a
// success: if there was no answer, repeat the call, as Configure itself does when the leader
// changes.
func (c *Client) Configure(ctx context.Context, g MemberChange) error {
	for {
		c.mu.Lock()
		changed := c.changed
		c.mu.Unlock()
		leader := c.leader()
		if leader == 0 {
			leader = c.nearest()
		}
		m, err := c.askLeader(ctx, leader, wire.Message{Kind: wire.Configure, Data: g.Append(nil)})
		switch {
		case errors.Is(err, errNotConnected): // not yet, or no longer
		case errors.Is(err, context.Canceled) && ctx.Err() == nil: // there is a new leader
		case err != nil:
			return err
		case m.Kind == wire.Refused && m.Code == wire.CodeBusy: // leadership is being transferred
		case m.Kind == wire.Refused:
			return fmt.Errorf("kv: change members: %s", m.Data)
		case m.Kind == wire.ReadDone && (g.Kind != Transfer || leader == g.Member.ID):
			return nil
		}
		if m.Leader != 0 && c.to(m.Leader) != nil && m.Leader != leader {
			continue
		}
		select { // an election, or a leader that is not connected
		case <-changed:
		case <-time.After(configurePause):
		case <-ctx.Done():
			return fmt.Errorf("kv: change members: no leader: %w", ctx.Err())
		}
	}
}

// configurePause is the pause before a change that cannot begin, or has not ended, is tried
// again.
const configurePause = 50 * time.Millisecond

// askLeader asks a replica, and gives up with context.Canceled when another replica leads: the
// first one may be paused while its connection stays open.
func (c *Client) askLeader(ctx context.Context, leader uint64, m wire.Message) (wire.Message, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(configurePause):
			}
			if now := c.leader(); now != 0 && now != leader {
				cancel()
			}
		}
	}()
	return c.request(ctx, leader, m)
}

// leader is the replica that leads, as far as is known, or 0.
func (c *Client) leader() uint64 {
	c.Session.mu.Lock()
	defer c.Session.mu.Unlock()
	id, _ := c.Session.pure.Leader()
	return id
}

var errNotConnected = errors.New("not connected")

// request asks one replica and waits for its answer.
func (c *Client) request(ctx context.Context, replica uint64, m wire.Message) (wire.Message, error) {
	conn := c.to(replica)
	if conn == nil {
		return m, fmt.Errorf("kv: replica %d: %w", replica, errNotConnected)
	}
	ch := make(chan wire.Message, 1)
	c.mu.Lock()
	c.requests++
	m.Request = askRange<<32 | c.requests
	c.asks[m.Request] = ch
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.asks, m.Request)
		c.mu.Unlock()
	}()
	if _, err := conn.Send([]wire.Message{m}); err != nil {
		if !errors.Is(err, peer.ErrFull) {
			err = fmt.Errorf("%w any more: %w", errNotConnected, err)
		}
		return m, fmt.Errorf("kv: ask replica %d: %w", replica, err)
	}
	select {
	case a := <-ch:
		return a, nil
	case <-conn.Done():
		return m, fmt.Errorf("kv: replica %d: %w any more: %w", replica, errNotConnected, conn.Err())
	case <-ctx.Done():
		return m, fmt.Errorf("kv: replica %d does not answer: %w", replica, ctx.Err())
	}
}
