package netwire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// Bound lets ctx and timeout (0: none) interrupt reads and writes on conn. The
// caller passes the outcome of its work through release, which undoes the
// binding and names the interruption if there was one; after an interruption
// conn is of no further use.
func Bound(ctx context.Context, conn net.Conn, timeout time.Duration) (release func(error) error) {
	cancel := func() {}
	if timeout > 0 {
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %v: %w", timeout, context.DeadlineExceeded))
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return func(err error) error {
		interrupted := !stop()
		cause, ctxErr := context.Cause(ctx), ctx.Err()
		cancel()
		// A TLS handshake sees the context itself, reads and writes see the
		// deadline in the past.
		if interrupted && (err == nil || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, ctxErr)) {
			return cause
		}
		return err
	}
}

// UnexpectedEOF makes of an end where more must come the error that says so.
func UnexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// DialError drops what net says again of the address, and names the context's
// reason if that is why.
func DialError(ctx context.Context, err error) error {
	// A dialler may notice the context's deadline just before the context does.
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		<-ctx.Done()
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
