package mysql

import (
	"context"

	"github.com/weirdb/weir/outbox"
)

func (s *Store) canTail(context.Context) error { return &outbox.TailError{Reason: "x"} }

// Tail x
func (l *lease) Tail(ctx context.Context) (outbox.Tail, error) { return nil, l.s.canTail(ctx) }
