package core

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"time"
)

// UntilHangup calls f with a context that also ends when the client at the other end
// of conn hangs up. r is the buffered reader of conn; it loses no data.
func UntilHangup(ctx context.Context, conn net.Conn, r *bufio.Reader, f func(context.Context)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		if _, err := r.Peek(1); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			cancel()
		}
	}()
	f(ctx)
	err := conn.SetReadDeadline(time.Unix(1, 0))
	<-looked
	return errors.Join(err, conn.SetReadDeadline(time.Time{}))
}
