package outboxbench

import (
	"context"

	"github.com/weirdb/weir/outbox"
)

// forgetful is a store whose leases note no delivery: the rows stay. What a relay
// reaches with it is about the most that any way of noting could, whole partitions dropped
// at no cost included; what producers keep beside it is what reading and delivering
// alone leave them.
type forgetful struct{ outbox.Store }

// Lead implements [outbox.Store].
func (f forgetful) Lead(ctx context.Context, shard int) (outbox.Lease, error) {
	l, err := f.Store.Lead(ctx, shard)
	if err != nil {
		return nil, err
	}
	return forgetfulLease{l}, nil
}

type forgetfulLease struct{ outbox.Lease }

// Ack implements [outbox.Lease].
func (forgetfulLease) Ack(context.Context, []outbox.Ref) error { return nil }

// floorSide is what the side of a claim is called whose relay notes nothing.
func floorSide(claim outbox.ClaimMode) string { return claim.String() + ", floor" }
