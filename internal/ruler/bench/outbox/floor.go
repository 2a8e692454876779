package outboxbench

import (
	"context"

	"github.com/weirdb/weir/outbox"
)

// forgetful is a store whose leases record no delivery: the rows stay. The rate of a relay with
// it is about the highest that any way of recording deliveries could reach, even dropping whole
// partitions at no cost. What producers reach next to it is what reading and delivering alone
// leave them.
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

// floorSide is the name of the side of a claim mode whose relay records nothing.
func floorSide(claim outbox.ClaimMode) string { return claim.String() + ", floor" }
