package postgres_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// pair runs two weirs that know each other, and a third number without a weir.
func pair(t *testing.T, db string, change func(*postgres.Config)) (one, two *weir) {
	t.Helper()
	var cfgs [2]postgres.Config
	var weirs [2]*weir
	for i := range weirs {
		weirs[i] = start(t, db, func(c *postgres.Config) {
			c.PeerID, c.Auth = i+1, string(pgwire.AuthTrust)
			if change != nil {
				change(c)
			}
			cfgs[i] = *c
		})
	}
	for i, w := range weirs {
		cfgs[i].Peers = session.Peers{1: weirs[0].Addr().String(), 2: weirs[1].Addr().String(), 3: "127.0.0.1:1"}
		if err := w.Reload(cfgs[i]); err != nil {
			t.Fatal(err)
		}
	}
	return weirs[0], weirs[1]
}

// TestCancelFindsItsWeir: a cancel request that arrives at another weir ends the
// statement, with keys of 4 bytes and of 32, and goes nowhere with a wrong secret.
func TestCancelFindsItsWeir(t *testing.T) {
	t.Parallel()
	db := database(t)
	one, two := pair(t, db, nil)
	direct := connect(t, server(t).DSN("postgres"))
	for _, version := range []uint32{pgwire.Version30, pgwire.Version32} {
		be, err := pgwire.Connect(ctxFor(t), pgwire.ConnectConfig{
			Address: one.Addr().String(), User: "postgres", Database: db, TLSMode: pgwire.TLSDisable, ProtocolVersion: version,
		})
		if err != nil {
			t.Fatal(err)
		}
		c := newWire(t, be)
		want := map[uint32]int{pgwire.Version30: 4, pgwire.Version32: 32}[version]
		if len(c.secret) != want || c.pid>>25 != 1 || c.pid>>31 != 0 {
			t.Fatalf("protocol %x: a secret of %d bytes, pid %x", version, len(c.secret), c.pid)
		}
		cancel := func(w *weir, pid uint32, secret []byte) {
			t.Helper()
			ctx, stop := context.WithTimeout(ctxFor(t), patience)
			defer stop()
			if err := pgwire.Cancel(ctx, pgwire.ConnectConfig{Address: w.Addr().String(), TLSMode: pgwire.TLSDisable}, pid, secret); err != nil {
				t.Fatal(err)
			}
		}
		c.send(query("SELECT pg_sleep(1000)"))
		eventually(t, "the server runs it", func() bool { // one that it has not begun with, no request ends
			var n int
			if err := direct.QueryRow(ctxFor(t), "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND state = 'active' AND query LIKE 'SELECT pg_sleep(1000)%'", db).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n == 1
		})
		wrong := append([]byte(nil), c.secret...)
		wrong[0]++
		sent := two.snapshot().Forwards
		cancel(two, c.pid, wrong)
		cancel(two, c.pid|1<<31, c.secret) // passed on already: goes no further
		cancel(one, c.pid+1, c.secret)
		cancel(two, c.pid&^(0x3f<<25)|3<<25, c.secret) // of a weir that is not there
		cancel(two, c.pid&^(0x3f<<25)|9<<25, c.secret) // ... that nobody has heard of
		if now := two.snapshot().Forwards; now.Sent != sent.Sent+1 || now.Failed != sent.Failed+1 {
			t.Errorf("passed on: %+v, before %+v", now, sent)
		}
		if one.pool().Active != 1 {
			t.Fatal("a request that proves nothing ended the statement")
		}
		cancel(two, c.pid, c.secret)
		if e := errorIn(c.ready()); e == nil || e.Code != pgwire.CodeQueryCanceled {
			t.Errorf("protocol %x: %v", version, e)
		}
		// The next statement is not hit: the request had been carried out.
		c.send(query("SELECT 1"))
		if e := errorIn(c.ready()); e != nil {
			t.Errorf("the next statement: %v", e)
		}
		c.close()
	}
	eventually(t, "they have left", func() bool { return one.pool().Active == 0 })
}

// TestCancelDoesNotCircle: weirs whose lists are wrong pass a request on once.
func TestCancelDoesNotCircle(t *testing.T) {
	t.Parallel()
	db := database(t)
	var cfgs [2]postgres.Config
	var weirs [2]*weir
	for i := range weirs {
		weirs[i] = start(t, db, func(c *postgres.Config) {
			c.PeerID = i + 1
			cfgs[i] = *c
		})
	}
	for i, w := range weirs { // each takes the other for weir 7
		cfgs[i].Peers = session.Peers{7: weirs[1-i].Addr().String()}
		if err := w.Reload(cfgs[i]); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithTimeout(ctxFor(t), patience)
	defer stop()
	began := time.Now()
	if err := pgwire.Cancel(ctx, pgwire.ConnectConfig{Address: weirs[0].Addr().String(), TLSMode: pgwire.TLSDisable}, 7<<25|5, []byte("none")); err != nil {
		t.Fatalf("after %v: %v", time.Since(began), err)
	}
	if a, b := weirs[0].snapshot().Forwards.Sent, weirs[1].snapshot().Forwards.Sent; a != 1 || b != 0 {
		t.Errorf("the first passed on %d requests, the second %d", a, b)
	}
	if a, b := weirs[0].snapshot().Cancels, weirs[1].snapshot().Cancels; a != 1 || b != 1 {
		t.Errorf("%d and %d requests came", a, b)
	}
}

func TestPeersAreChecked(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"2=a:1,3=/run/weir/.s": "", "": "", "2=a:1, 2=b:1": "twice", "64=a:1": "1 to 63", "0=a:1": "1 to 63", "x=a:1": "NUMBER=ADDRESS", "2": "NUMBER=ADDRESS", "2=": "NUMBER=ADDRESS",
	} {
		if _, err := session.ParsePeers(text); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	for own, want := range map[int]int{0: 2, 1: 2, 2: 1} {
		if n := (session.Peers{2: "a:1", 3: "a:2"}).Others(own); n != want {
			t.Errorf("number %d has %d peers, want %d", own, n, want)
		}
	}
	if err := (session.Peers{2: "a:1"}).Check(0); err == nil || !strings.Contains(err.Error(), "--peer-id") {
		t.Error(err)
	}
	if err := (session.Peers{}).Check(64); err == nil {
		t.Error("number 64 is taken")
	}
}
