package pgrepl

import (
	"context"
	"iter"
)

// Events iterates over Next until it fails; the error comes last.
func (t *Tail) Events(ctx context.Context) iter.Seq2[*Event, error] {
	return func(yield func(*Event, error) bool) {
		for {
			e, err := t.Next(ctx)
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}
