package postgres_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strconv"
	gosync "sync"
	"sync/atomic"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A liar stands before a standby and, while it lies, has it say that it is the primary.
type liar struct {
	net.Listener
	target string
	lies   atomic.Bool
	serves gosync.WaitGroup
}

func newLiar(t *testing.T, target string) *liar {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &liar{Listener: ln, target: target}
	l.serves.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			l.serves.Go(func() { l.serve(client) })
		}
	})
	return l
}

func (l *liar) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", l.target)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	from := &wire{r: bufio.NewReader(server), conn: server}
	for {
		m, err := from.next()
		if err != nil {
			return
		}
		if l.lies.Load() {
			m.body = lie(m)
		}
		if _, err := client.Write(pgwire.AppendMessage(nil, m.typ, m.body)); err != nil {
			return
		}
	}
}

// lie makes what a standby says of its role what a primary on the first timeline says.
func lie(m message) []byte {
	switch m.typ {
	case pgwire.ServerParameterStatus:
		if string(m.body) == "in_hot_standby\x00on\x00" {
			return []byte("in_hot_standby\x00off\x00")
		}
	case pgwire.ServerDataRow:
		// The answer to the question for its role: true, no timeline, and a position.
		if position, ok := bytes.CutPrefix(m.body, []byte("\x00\x03\x00\x00\x00\x01t\xff\xff\xff\xff")); ok {
			return append([]byte("\x00\x03\x00\x00\x00\x01f\x00\x00\x00\x0800000001"), position...)
		}
	}
	return m.body
}

// A standby that says it is the primary gets writes when weir starts, for nothing tells
// it from one: they are refused, not lost, and their clients stay. When it tells the
// truth weir leaves it; and when it lies again the primary stays in use.
func TestStandbyThatLiesTakesNoWrites(t *testing.T) {
	t.Parallel()
	primary, standby, _ := cluster(t, upstream.TargetReadWrite)
	l := newLiar(t, standby.Addr())
	l.lies.Store(true)
	start := func() *weir {
		return startFor(t, primary, "postgres", func(c *postgres.Config) {
			for _, addr := range []string{l.Addr().String(), primary.Addr()} { // the liar first
				c.Hosts = append(c.Hosts, pgwire.ConnectConfig{Address: addr, User: primary.User(), Password: primary.Password(), TLSMode: pgwire.TLSDisable})
			}
			c.Postgres = c.Hosts[0]
			c.Target, c.FailoverTimeout = upstream.TargetReadWrite, patience
		})
	}
	current := func(w *weir) (host string) {
		for _, h := range w.snapshot().Hosts {
			if h.Current {
				host = h.Host
			}
		}
		return host
	}
	var w *weir
	eventually(t, "weir starts with the standby that lies", func() bool {
		w = start()
		eventually(t, "the hosts have been asked", func() bool { return current(w) != "" })
		if current(w) == l.Addr().String() {
			return true
		}
		_ = w.stop() // it answered too late, on a machine that is busy
		return false
	})
	t.Cleanup(func() {
		_ = w.stop()
		_ = l.Close()
		l.serves.Wait()
	})
	c := w.wire()
	for _, hint := range []string{"", "/* batch */ "} {
		c.send(run(hint + "INSERT INTO t VALUES (1)"))
		if e := errorIn(c.ready()); e == nil || e.Code != "25006" {
			t.Errorf("%sa write at a standby that lies: %+v, want 25006", hint, e)
		}
	}
	c.want("SELECT count(*) FROM t", "[count] (0) SELECT_1 I")

	l.lies.Store(false)
	eventually(t, "connections go to the primary", func() bool { return current(w) == primary.Addr() })
	eventually(t, "writes go to the primary", func() bool {
		c.send(run("INSERT INTO t VALUES (2)"))
		got, err := c.until(pgwire.ServerReady)
		if err != nil { // it was under way at the standby when weir left that
			if e := errorIn(got); e == nil || e.Code != pgwire.CodeConnectionFailure {
				t.Fatalf("a write while connections move: %+v, %v", e, err)
			}
			c = w.wire()
			return false
		}
		return errorIn(got) == nil // or the standby refused it
	})

	l.lies.Store(true)
	eventually(t, "the standby is known to lie again", func() bool {
		n := 0
		for _, h := range w.snapshot().Hosts {
			if h.Role == "primary" {
				n++
			}
		}
		return n == 2
	})
	for i := range 20 {
		c.send(run("INSERT INTO t VALUES ($1)", strconv.Itoa(10+i)))
		if e := errorIn(c.ready()); e != nil {
			t.Errorf("a write beside a standby that lies: %+v", e)
		}
	}
	if host := current(w); host != primary.Addr() {
		t.Errorf("connections went to the standby that lies, at %s", host)
	}
	dialWire(t, primary.Addr(), "postgres").want("SELECT count(*) FROM t", "[count] (21) SELECT_1 I")
}
