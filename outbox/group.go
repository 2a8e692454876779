package outbox

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/weirdb/weir/batch"
)

// Group enqueues messages that belong to no business transaction: concurrent
// calls share one INSERT and so one commit. A group forms only while another is
// in flight, so a lone message does not wait.
type Group struct {
	b *batch.Batcher[struct{}, []Message, struct{}]
}

// GroupOptions are those of a [Group].
type GroupOptions struct {
	// Timeout is how long an INSERT may take, including the wait for its
	// connection: later calls wait behind it. Default: 1 min.
	Timeout time.Duration
}

// NewGroup is [NewGroupWith] with all options at their defaults.
func NewGroup(db Tx) *Group { return NewGroupWith(db, GroupOptions{}) }

// NewGroupWith enqueues through db, a handle for which every statement is its own
// transaction: Postgres(*sql.DB), Pgx(*pgxpool.Pool) and the like.
func NewGroupWith(db Tx, o GroupOptions) *Group {
	timeout := cmp.Or(o.Timeout, time.Minute)
	return &Group{batch.New(batch.Options[[]Message]{
		Config:  batch.Config{MaxBytes: maxInsertBytes},
		Size:    groupSize,
		Ordered: true,
	}, func(_ struct{}, items [][]Message, _ []batch.Result[struct{}]) error {
		all := items[0]
		if len(items) > 1 {
			all = nil
			for _, msgs := range items {
				all = append(all, msgs...)
			}
		}
		// The members' own contexts bound only their waiting: the insert is not
		// theirs alone.
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		return Enqueue(ctx, db, all...)
	})}
}

// groupSize is a member's part of a group, which is as many messages and bytes as one
// INSERT: each message counts as its bytes, or as an even part of them all if it has
// less.
func groupSize(msgs []Message) (size int) {
	for i := range msgs {
		size += max(msgs[i].size(), maxInsertBytes/maxInsert)
	}
	return size
}

// Enqueue returns when the messages are committed. Invalid messages are refused by
// themselves. An error of the database is returned to every caller in the group, and
// as after any failed commit the outcome may be unknown. It is also unknown if ctx
// ends while the insert is in flight. A group has at most 256 messages and 1 MiB, so
// that no INSERT is refused for the size of other callers' messages; a call with more
// has its own statement, or several, each committed by itself. The messages are
// copied, so the caller may change them after Enqueue has returned.
func (g *Group) Enqueue(ctx context.Context, msgs ...Message) error {
	if err := prepare(msgs); err != nil {
		return err
	}
	own := slices.Clone(msgs)
	for i := range own {
		own[i].Payload, own[i].Headers = bytes.Clone(own[i].Payload), maps.Clone(own[i].Headers)
	}
	_, err := g.b.Submit(ctx, struct{}{}, own)
	return err
}

// Close waits for all messages that were passed to Enqueue.
func (g *Group) Close() error { return g.b.Close() }
