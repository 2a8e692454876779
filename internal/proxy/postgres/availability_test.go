package postgres_test

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"strings"
	gosync "sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A startingServer refuses logins like a server that starts, until it is told to
// pass them on to a real one.
type startingServer struct {
	ln       net.Listener
	started  atomic.Bool
	attempts atomic.Int64 // that were refused
	open     gosync.WaitGroup
}

func startsSlowly(t *testing.T, addr string) *startingServer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &startingServer{ln: ln}
	s.open.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			s.open.Go(func() { s.serve(conn, addr) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		s.open.Wait()
	})
	return s
}

func (s *startingServer) serve(conn net.Conn, addr string) {
	defer func() { _ = conn.Close() }()
	if !s.started.Load() {
		_, _ = conn.Read(make([]byte, 1024)) // the startup packet
		s.attempts.Add(1)
		_, _ = conn.Write(pgwire.AppendError(nil, pgwire.NewFatal(pgwire.CodeCannotConnectNow, "the database system is starting up")))
		return
	}
	far, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer func() { _ = far.Close() }()
	s.open.Go(func() {
		_, _ = io.Copy(far, conn)
		_ = far.(*net.TCPConn).CloseWrite()
	})
	_, _ = io.Copy(conn, far)
}

// lines counts the lines of a log that have a text in them. Safe for concurrent use.
type lines struct {
	mu  gosync.Mutex
	all bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *lines) with(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.all.String(), text)
}

// Clients that log in while the server starts wait for it. Few of them ask it, and
// the log tells of it once.
func TestLoginsWaitForAServerThatStarts(t *testing.T) {
	t.Parallel()
	db := database(t)
	for _, c := range []struct {
		name   string
		change func(*postgres.Config)
	}{
		{"relay", func(*postgres.Config) {}},
		{"auth query", func(c *postgres.Config) {
			c.Auth = "password"
			c.AuthQuery = "SELECT $1::text, 'secret'::text"
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			slow := startsSlowly(t, server(t).Addr())
			log := &lines{}
			w := start(t, db, func(cfg *postgres.Config) {
				cfg.Postgres.Address = slow.ln.Addr().String()
				cfg.ConnectPatience, cfg.LoginTimeout = patience, patience
				cfg.Log = slog.New(slog.NewTextHandler(log, nil))
				c.change(cfg)
			})
			const clients = 40
			done := make(chan error, clients)
			for range clients {
				go func() {
					be, err := pgwire.Connect(t.Context(), pgwire.ConnectConfig{
						Address: w.Addr().String(), User: "postgres", Database: db, Password: "secret", TLSMode: pgwire.TLSDisable, Timeout: patience,
					})
					if err == nil {
						_ = be.Conn.Close()
					}
					done <- err
				}()
			}
			eventually(t, "the server is asked again and again", func() bool { return slow.attempts.Load() >= 60 })
			if len(done) > 0 {
				t.Errorf("a client was not waited for: %v", <-done)
			}
			slow.started.Store(true)
			for range clients {
				if err := <-done; err != nil {
					t.Errorf("login when the server is up: %v", err)
				}
			}
			if n := log.with("takes no logins"); n != 1 {
				t.Errorf("%d lines say that the server takes no logins", n)
			}
			if n := log.with("takes logins again"); n != 1 {
				t.Errorf("%d lines say that it does again", n)
			}
			if n := log.with("login failed"); n != 0 {
				t.Errorf("%d lines say that a login failed", n)
			}
		})
	}
}

// Logins do not wait for ever, and hear what the server says.
func TestLoginsHearWhyTheServerTakesNone(t *testing.T) {
	t.Parallel()
	db := database(t)
	slow := startsSlowly(t, server(t).Addr())
	log := &lines{}
	w := start(t, db, func(cfg *postgres.Config) {
		cfg.Postgres.Address = slow.ln.Addr().String()
		cfg.ConnectPatience = 50 * time.Millisecond
		cfg.Log = slog.New(slog.NewTextHandler(log, nil))
	})
	for range 10 {
		if _, err := tryWireAs(t, w.Addr().String(), db, "weir_other"); pgwire.CodeOf(err) != pgwire.CodeCannotConnectNow {
			t.Errorf("login while the server starts: %v", err)
		}
	}
	if n := log.with("\n"); n > 3 {
		t.Errorf("the log has %d lines for 10 logins", n)
	}
}
