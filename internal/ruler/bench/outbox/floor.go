package outboxbench

import (
	"context"

	"github.com/weirdb/weir/outbox"
)

// noAckStore is a store whose leases record no delivery: the rows stay. The rate of a relay with
// it is about the highest that any way of recording deliveries could reach, even dropping whole
// partitions at no cost. What producers reach next to it is what reading and delivering alone
// leave them.
type noAckStore struct{ outbox.Store }

// Lead implements [outbox.Store].
func (f noAckStore) Lead(ctx context.Context, shard int) (outbox.Lease, error) {
	l, err := f.Store.Lead(ctx, shard)
	if err != nil {
		return nil, err
	}
	return noAckLease{l}, nil
}

type noAckLease struct{ outbox.Lease }

// Ack implements [outbox.Lease].
func (noAckLease) Ack(context.Context, []outbox.Ref) error { return nil }

// floorSide is the name of the side of a claim mode whose relay records nothing.
func floorSide(claim outbox.ClaimMode) string { return claim.String() + ", floor" }
