// Package inspect asks every replica of a cluster for its state.
package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirdb/weir/internal/kvd/replica"
	"github.com/weirdb/weir/kv"
)

// Cluster is the state of the replicas of a cluster.
type Cluster struct {
	Replicas []replica.Status // those that answered, by ascending id
	Down     map[string]error // by address: why a replica did not answer
}

// errNoConnection is the error for a replica that neither accepted nor refused a connection.
var errNoConnection = errors.New("no connection within --timeout")

// Ask asks all replicas. A replica that hangs does not hide the others: half of the time is for
// connecting, the rest for the answers.
func Ask(ctx context.Context, c *kv.Client) (*Cluster, error) {
	up, down := settled(ctx, c)
	type answer struct {
		id  uint64
		raw json.RawMessage
		err error
	}
	answers := make(chan answer, len(up))
	for id := range up {
		go func() {
			raw, err := c.Inspect(ctx, id)
			answers <- answer{id, raw, err}
		}()
	}
	cluster := &Cluster{Down: down}
	for range up {
		a := <-answers
		if a.err != nil {
			down[up[a.id]] = a.err
			continue
		}
		var s replica.Status
		if err := json.Unmarshal(a.raw, &s); err != nil {
			return nil, fmt.Errorf("state of replica %d: %w", a.id, err)
		}
		cluster.Replicas = append(cluster.Replicas, s)
	}
	slices.SortFunc(cluster.Replicas, func(a, b replica.Status) int { return cmp.Compare(a.ID, b.ID) })
	return cluster, nil
}

// settled waits until each endpoint is connected or has failed, for at most half of the
// remaining time.
func settled(ctx context.Context, c *kv.Client) (up map[uint64]string, down map[string]error) {
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
	}
	for {
		up, down = c.Replicas()
		trying := false
		for _, err := range down {
			trying = trying || err == nil
		}
		if !trying {
			return up, down
		}
		select {
		case <-ctx.Done():
			explain(down)
			return up, down
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// explain sets the error of replicas that have neither accepted nor refused a connection.
func explain(down map[string]error) {
	for a, err := range down {
		if err == nil {
			down[a] = errNoConnection
		}
	}
}

// Unreachable returns the state of a cluster of which no replica could be reached.
func Unreachable(e *kv.UnreachableError) *Cluster {
	explain(e.Down)
	return &Cluster{Down: e.Down}
}

// Check returns an error if none of the replicas that answer leads, or if one does not answer.
func (c *Cluster) Check() error {
	leads := slices.ContainsFunc(c.Replicas, func(s replica.Status) bool { return s.Leader == s.ID && s.Open })
	switch {
	case !leads:
		return errors.New("no replica that answers leads")
	case len(c.Down) > 0:
		return fmt.Errorf("%d of %d replicas do not answer", len(c.Down), len(c.Replicas)+len(c.Down))
	}
	return nil
}

// Newest returns the state of the replica that has applied most of the log.
func (c *Cluster) Newest() (*replica.Status, error) {
	if len(c.Replicas) == 0 {
		return nil, errors.New("no replica answers")
	}
	newest := slices.MaxFunc(c.Replicas, func(a, b replica.Status) int { return cmp.Compare(a.Applied, b.Applied) })
	return &newest, nil
}

// Role returns the current role of a replica.
func Role(s *replica.Status) string {
	switch {
	case s.Leader == s.ID && s.Open:
		return "leader"
	case s.Leader == s.ID:
		return "leader, opening"
	case s.Leader == 0:
		return "no leader"
	case !s.Voter:
		return "learner"
	}
	return "follower"
}
