package postgres

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
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

// A script is a connection whose other side says what it holds, and is slow for each nil in it.
type script struct {
	net.Conn // none
	says     [][]byte
	deadline time.Time
}

func (c *script) Read(p []byte) (int, error) {
	if len(c.says) == 0 || c.says[0] == nil {
		c.says = c.says[min(1, len(c.says)):]
		return 0, os.ErrDeadlineExceeded
	}
	n := copy(p, c.says[0])
	if c.says[0] = c.says[0][n:]; len(c.says[0]) == 0 {
		c.says = c.says[1:]
	}
	return n, nil
}
func (c *script) Write(p []byte) (int, error)      { return len(p), nil }
func (c *script) SetDeadline(at time.Time) error   { c.deadline = at; return nil }
func (c *script) SetReadDeadline(time.Time) error  { return nil }
func (c *script) SetWriteDeadline(time.Time) error { return nil }
func (c *script) Close() error                     { return nil }

// Who waits for a connection tells that there is a pooler that does not share them, if it still
// waits when the first one is answered; in any case a connection of use has no deadline left.
func TestPoolerWithoutAConnectionFree(t *testing.T) {
	t.Parallel()
	ready := pgwire.AppendReadyForQuery(nil, pgwire.StatusIdle)
	welcome := bytes.Join([][]byte{pgwire.AppendAuthOK(nil), pgwire.AppendBackendKeyData(nil, maxProcess+2, make([]byte, 4)), ready}, nil)
	refusal := pgwire.AppendError(nil, pgwire.NewError("42704", "no such parameter"))
	for _, tt := range []struct {
		name     string
		be       [][]byte
		other    [][]byte
		sure, ok bool
	}{
		{"it waits on", [][]byte{ready, ready, ready}, [][]byte{welcome, nil}, true, true},
		{"it is answered first", [][]byte{ready, ready, ready}, [][]byte{welcome, nil, ready}, false, false},
		{"no PostgreSQL", [][]byte{append(refusal, ready...)}, nil, false, true},
	} {
		be := &script{says: tt.be}
		cfg := pgwire.ConnectConfig{Address: "h:1", User: "u", Database: "d", TLSMode: pgwire.TLSDisable}
		cfg.Dial = func(context.Context, string, string) (net.Conn, error) { return &script{says: tt.other}, nil }
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		shares, sure, err := sharesSessions(ctx, cfg, &pgwire.Backend{PID: maxProcess + 1, Conn: be})
		cancel()
		if shares || sure != tt.sure || (err == nil) != tt.ok {
			t.Errorf("%s: shares %v, sure %v, %v; want sure %v, of use %v", tt.name, shares, sure, err, tt.sure, tt.ok)
		}
		if err == nil && !be.deadline.IsZero() {
			t.Errorf("%s: the deadline %v is left on the connection", tt.name, be.deadline)
		}
	}
}

// A distant connection answers what it is sent after a round trip.
type distant struct {
	script
	trip   time.Duration
	comes  time.Time
	queued [][]byte // answers to the messages to come; the last one is to all others
}

func (c *distant) Write(p []byte) (int, error) {
	c.says, c.comes = [][]byte{c.queued[0]}, time.Now().Add(c.trip)
	if len(c.queued) > 1 {
		c.queued = c.queued[1:]
	}
	return len(p), nil
}

func (c *distant) Read(p []byte) (int, error) {
	if !c.deadline.IsZero() && c.deadline.Before(c.comes) {
		time.Sleep(time.Until(c.deadline))
		return 0, os.ErrDeadlineExceeded
	}
	time.Sleep(time.Until(c.comes))
	return c.script.Read(p)
}

// A pooler that is far away is no pooler that has no connection free.
func TestPoolerThatIsFarAway(t *testing.T) {
	t.Parallel()
	ready := pgwire.AppendReadyForQuery(nil, pgwire.StatusIdle)
	welcome := bytes.Join([][]byte{pgwire.AppendAuthOK(nil), pgwire.AppendBackendKeyData(nil, maxProcess+2, make([]byte, 4)), ready}, nil)
	row := append(pgwire.AppendDataRow(nil, [][]byte{[]byte("0.5")}), ready...)
	for _, trip := range []time.Duration{time.Millisecond, 110 * time.Millisecond, 300 * time.Millisecond, 450 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			cfg := pgwire.ConnectConfig{Address: "h:1", User: "u", Database: "d", TLSMode: pgwire.TLSDisable}
			cfg.Dial = func(context.Context, string, string) (net.Conn, error) {
				return &distant{trip: trip, queued: [][]byte{welcome, row}}, nil
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			be := &distant{trip: trip, queued: [][]byte{ready}}
			shares, sure, err := sharesSessions(ctx, cfg, &pgwire.Backend{PID: maxProcess + 1, Conn: be})
			if shares || !sure || err != nil {
				t.Errorf("%v away: shares %v, sure %v, %v", trip, shares, sure, err)
			}
		})
	}
}
