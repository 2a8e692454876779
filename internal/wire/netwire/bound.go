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

// Bound makes ctx and timeout (0: none) interrupt reads and writes on conn. The caller passes
// the error of its work through release, which removes the limits and returns the reason for
// the interruption, if there was one; after an interruption, conn must not be used any more.
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
		// A TLS handshake returns the context's error; reads and writes return that of the
		// deadline in the past.
		if interrupted && (err == nil || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, ctxErr)) {
			return cause
		}
		return err
	}
}

// UnexpectedEOF converts io.EOF, where more data must follow, to io.ErrUnexpectedEOF.
func UnexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// DialError returns the cause of ctx if that ended the dialing. Otherwise it returns err without
// the address that an error of package net repeats.
func DialError(ctx context.Context, err error) error {
	// A dialer may notice the context's deadline just before the context does.
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
