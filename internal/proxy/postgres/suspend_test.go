package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/postgres"
)

// bytesOfClients is how much weir has read from the clients of each loop, after a turn.
func (w *weir) bytesOfClients() (n uint64) {
	w.tb.Helper()
	a, err := w.Command(ctxFor(w.tb), "SHOW STATE")
	if err != nil || a.Table == nil {
		w.tb.Fatalf("SHOW STATE: %v", err)
	}
	for _, l := range w.Loops {
		if err := l.Call(ctxFor(w.tb), func() {
			for c := range l.EachClient {
				n += c.Received
			}
		}); err != nil {
			w.tb.Fatal(err)
		}
	}
	return n
}

// TestSuspendReadsNothing: from SUSPEND to RESUME nothing is read, connections and
// transactions stay, logins wait, and the console works.
func TestSuspendReadsNothing(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, loadTables...), nil)
	holder, reader := w.wire(), w.wire()
	reader.want("SELECT n FROM t WHERE k = 1", "[n] (0) SELECT_1 I")
	holder.want("BEGIN", "BEGIN T")
	holder.want("UPDATE t SET n = 1 WHERE k = 1", "UPDATE_1 T")
	w.command("SUSPEND")
	before := w.bytesOfClients()
	reader.send(query("SELECT n FROM t WHERE k = 2"))
	holder.send(query("COMMIT"))
	login := make(chan *wire, 1)
	go func() {
		late, err := tryWireAs(t, w.Addr().String(), w.db, "postgres")
		if err != nil {
			t.Errorf("the login that waited: %v", err)
		}
		login <- late
	}()
	console := dialWire(t, w.Addr().String(), "weir")
	console.want("SHOW STATE", "[key,value] (active,no) (paused,no) (suspended,yes) SHOW I")
	if after := w.bytesOfClients(); after != before {
		t.Errorf("%d bytes were read from clients meanwhile", after-before)
	}
	select {
	case <-login:
		t.Error("a login did not wait")
	default:
	}
	for text, want := range map[string]string{"SUSPEND": "paused already", "PAUSE": "paused already", "PAUSE " + w.db: "paused already", "RESUME " + w.db: "all databases are paused"} {
		var no *core.Refusal
		if _, err := w.Command(t.Context(), text); !errors.As(err, &no) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	console.want("RESUME", "RESUME I")
	console.want("SHOW STATE", "[key,value] (active,yes) (paused,no) (suspended,no) SHOW I")
	if got := render(reader.ready()); got != "[n] (0) SELECT_1 I" {
		t.Errorf("the read that waited: %s", got)
	}
	if got := render(holder.ready()); got != "COMMIT I" {
		t.Errorf("the transaction that waited: %s", got)
	}
	if late := <-login; late != nil {
		late.want("SELECT n FROM t WHERE k = 1", "[n] (1) SELECT_1 I")
	}
}

// TestSuspendWaitsForOutput: it returns when clients have taken what is theirs.
func TestSuspendWaitsForOutput(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	c := w.wire()
	c.send(query("SELECT repeat('x', 64 << 20)"))
	var before uint64
	eventually(t, "the kernel takes no more for a client that does not read", func() bool {
		n, sent, was := 0, uint64(0), before
		for _, l := range w.Loops {
			if err := l.Call(ctxFor(t), func() {
				n += l.Unwritten()
				for c := range l.EachClient {
					sent += c.Sent
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		before = sent
		return n > 0 && sent > 0 && sent == was
	})
	// The kernel may have taken nothing for a moment only, and take what is left then.
	eventually(t, "SUSPEND waits", func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			_, err := w.Command(ctx, "SUSPEND")
			ended <- err
		}()
		eventually(t, "weir is suspended", w.Suspended)
		cancel()
		err := <-ended
		if err != nil && !errors.Is(err, context.Canceled) && !strings.Contains(err.Error(), "1 connections have output") {
			t.Errorf("SUSPEND given up: %v", err)
		}
		w.command("RESUME")
		return err != nil
	})
	if got := c.ready(); len(got) != 4 || len(got[1].body) < 64<<20 {
		t.Errorf("the client has %d messages", len(got))
	}
}

// TestSuspendUnderLoad suspends and resumes under load.
func TestSuspendUnderLoad(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, loadTables...), func(c *postgres.Config) { c.Loops = 2 })
	l := w.load(t)
	for range 10 {
		l.GoesOn()
		w.command("SUSPEND")
		w.command("RESUME")
	}
	end(t, l, server(t).DSN(w.db))
}

// TestDrainEndsSuspend: weir that is to stop serves what is under way.
func TestDrainEndsSuspend(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, loadTables...), func(c *postgres.Config) { c.DrainTimeout = patience })
	c := w.wire()
	c.want("BEGIN", "BEGIN T")
	c.want("UPDATE t SET n = 1 WHERE k = 1", "UPDATE_1 T")
	w.command("SUSPEND")
	c.send(query("COMMIT"))
	w.End(core.ShutdownAfterServers)
	if got := render(c.ready()); got != "COMMIT I" {
		t.Errorf("the transaction that waited: %s", got)
	}
}
