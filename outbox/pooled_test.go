package outbox

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// pooledStore is behind a pooler, which loses the statements of all that it does.
type pooledStore struct{ *memStore }

func (s *pooledStore) Check(context.Context) error { return fmt.Errorf("check: %w", ErrPooled) }

func (s *pooledStore) Describe(context.Context) (Description, error) {
	return Description{}, errors.New("prepared statement does not exist")
}

// The relay says what is wrong, and does not wait for a statement to succeed.
func TestPoolersAreRefusedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := NewRelay(&pooledStore{newMemStore()}, &memSink{}, fast())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := r.Run(ctx); !errors.Is(err, ErrPooled) {
			t.Errorf("the relay ended with %v, want %v", err, ErrPooled)
		}
	})
}
