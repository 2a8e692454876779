package netwire_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/wire/netwire"
)

func TestBoundNamesWhatInterrupted(t *testing.T) {
	t.Parallel()
	left := errors.New("the caller left")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(left)
	for _, test := range []struct {
		name    string
		ctx     context.Context
		timeout time.Duration
		want    error
	}{
		{"the context", ended, 0, left},
		{"the timeout", t.Context(), time.Millisecond, context.DeadlineExceeded},
	} {
		a, b := net.Pipe()
		release := netwire.Bound(test.ctx, a, test.timeout)
		_, err := a.Read(make([]byte, 1))
		if got := release(err); !errors.Is(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
		_, _ = a.Close(), b.Close()
	}
}

func TestBoundReturnsTheErrorOfTheWork(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	release := netwire.Bound(t.Context(), a, time.Hour)
	if got := release(io.ErrUnexpectedEOF); !errors.Is(got, io.ErrUnexpectedEOF) {
		t.Errorf("the work's error became %v", got)
	}
	if got := netwire.Bound(t.Context(), a, 0)(nil); got != nil {
		t.Errorf("work that ended well: %v", got)
	}
}
