package postgres

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// While one connection looks whether its address is a pooler's, another one waits no longer
// than its login may. One on which an answer is still to come is of no use.
func TestPoolerThatIsSlowToTell(t *testing.T) {
	t.Parallel()
	var v pooledVerdicts
	e := upstream.Endpoint{Host: "h:1", Address: "h:1"}
	cfg := pgwire.ConnectConfig{Database: "d", User: "u"}
	near, far := net.Pipe()
	defer func() { _ = far.Close() }()
	login, end := context.WithTimeout(t.Context(), time.Hour)
	defer end()
	first := make(chan error, 1)
	go func() {
		first <- v.check(login, nil, cfg, &pgwire.Backend{PID: maxProcess + 1, Conn: near}, e)
	}()
	if _, err := io.ReadFull(far, make([]byte, len("Q\x00\x00\x00\x00SET geqo_seed = 0.00001\x00"))); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := v.check(over, nil, cfg, &pgwire.Backend{PID: maxProcess + 2}, e); !errors.Is(err, context.Canceled) {
		t.Errorf("check behind it: %v, want %v", err, context.Canceled)
	}
	if _, mine := v.begin(pooledKey{e.Address, "other", cfg.User}); !mine {
		t.Error("another database waits for what is found of this one")
	}
	_ = near.SetDeadline(time.Unix(1, 0)) // it has waited for long enough
	if err := <-first; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("check of a connection whose answer is still to come: %v, want %v", err, os.ErrDeadlineExceeded)
	}
	if _, mine := v.begin(pooledKey{e.Address, cfg.Database, cfg.User}); !mine {
		t.Error("a verdict is kept, and nothing was found")
	}
}
