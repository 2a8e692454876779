package core

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// Forwards are the cancel requests in flight to the other weirs that have the clients they
// name. Anyone who can connect may send one, so their number and their time are
// bounded. Safe for concurrent use.
type Forwards struct {
	underWay              atomic.Int64
	sent, refused, failed atomic.Uint64
}

const (
	// maxForwards bounds the requests in flight.
	maxForwards = 64
	// forwardPatience bounds the time of each: a peer waits for the server's answer.
	forwardPatience = 10 * time.Second
)

// errTooManyForwards is why a request is not forwarded.
var errTooManyForwards = errors.New("too many requests are on their way to other weirs")

// Do sends one request.
func (f *Forwards) Do(ctx context.Context, send func(ctx context.Context) error) error {
	defer f.underWay.Add(-1)
	if f.underWay.Add(1) > maxForwards {
		f.refused.Add(1)
		return errTooManyForwards
	}
	ctx, cancel := context.WithTimeout(ctx, forwardPatience)
	defer cancel()
	err := send(ctx)
	if err != nil {
		f.failed.Add(1)
		return err
	}
	f.sent.Add(1)
	return nil
}

// counts adds the outcomes of the requests.
func (f *Forwards) counts(out *sight.Snapshot) {
	out.Forwards = sight.ForwardCounts{Sent: f.sent.Load(), Refused: f.refused.Load(), Failed: f.failed.Load()}
}

// PeersTable answers SHOW PEERS.
func PeersTable(peers session.Peers) sight.Table {
	t := sight.Table{Cols: []string{"peer_id", "host", "port", "pool_size"}}
	for _, id := range slices.Sorted(maps.Keys(peers)) {
		host, port := hostPort(peers[id])
		t.Add(id, host, port, 0)
	}
	return t
}
