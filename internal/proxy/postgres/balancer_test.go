package postgres_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
	"github.com/weirdb/weir/internal/wire/proxyproto"
)

// announced dials as a balancer does, with a header in front.
func announced(header string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err == nil {
			_, err = io.WriteString(conn, header)
		}
		return conn, err
	}
}

// A balancer on weir's own host says whose connection it passes on: the client has
// that address, and is not taken for a local one.
func TestClientsBehindABalancerHaveTheirOwnAddress(t *testing.T) {
	t.Parallel()
	db := database(t)
	trusted, err := proxyproto.ParseTrusted("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	behind := func(w *weir, user, header string) (*pgwire.Backend, error) {
		cfg := pgwire.ConnectConfig{Address: w.Addr().String(), User: user, Database: db, TLSMode: pgwire.TLSDisable, Timeout: patience, Dial: announced(header)}
		be, err := pgwire.Connect(t.Context(), cfg)
		if err == nil {
			t.Cleanup(func() { _ = be.Conn.Close() })
		}
		return be, err
	}
	scram, err := pgwire.ParseSecret("known")
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, db, func(c *postgres.Config) {
		c.ProxyProtocol = trusted
		c.Users = []postgres.User{{Name: "weir_other", Secret: scram}}
	})
	if _, err := behind(w, "postgres", "PROXY TCP4 192.0.2.1 127.0.0.1 56324 5432\r\n"); pgwire.CodeOf(err) != pgwire.CodeInvalidAuthorization {
		t.Errorf("what the server grants weir was lent to a client from afar: %v", err)
	}
	if _, err := behind(w, "postgres", "PROXY TCP4 127.0.0.1 127.0.0.1 56324 5432\r\n"); err != nil {
		t.Errorf("a local client behind the balancer: %v", err)
	}
	if _, err := behind(w, "postgres", ""); err == nil || !strings.Contains(err.Error(), "EOF") && !strings.Contains(err.Error(), "reset") {
		t.Errorf("without a header from where one is demanded: %v", err)
	}
	cfg, err := pgconn.ParseConfig("postgres://postgres@" + w.Addr().String() + "/weir?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	cfg.DialFunc = announced("PROXY UNKNOWN\r\n") // the balancer's own connection
	console, err := pgconn.ConnectConfig(ctxFor(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = console.Close(context.Background()) }()
	if got := console.ParameterStatus("DateStyle"); !strings.HasPrefix(got, "ISO") {
		t.Errorf("the console's DateStyle is %q: psycopg2 would send SET datestyle", got)
	}
	results, err := console.Exec(ctxFor(t), "SHOW CLIENTS").ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if shown := fmt.Sprintf("%q", results[0].Rows); !strings.Contains(shown, "127.0.0.1:56324") {
		t.Errorf("clients are %s, want the address that the balancer named", shown)
	}
}

// A balancer that reaches weir over a Unix socket passes on clients from elsewhere: they
// need TLS where it is demanded, and can have it.
func TestClientsBehindALocalBalancerNeedTLS(t *testing.T) {
	t.Parallel()
	server := authServer(t, lab.SCRAM, lab.TLSRequired)
	pair, err := tls.LoadX509KeyPair(server.ServerCert().Cert, server.ServerCert().Key)
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := proxyproto.ParseTrusted("unix")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), ".s.PGSQL.6432")
	startFor(t, server, "postgres", func(c *postgres.Config) {
		c.Postgres.TLSMode = pgwire.TLSRequire
		c.Listen, c.ProxyProtocol = path, trusted
		c.ClientTLS, c.ClientTLSMode = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, pgwire.TLSRequire
	})
	for _, c := range []struct {
		header string
		mode   pgwire.TLSMode
		code   string
	}{
		{"PROXY TCP4 192.0.2.1 192.0.2.2 56324 5432\r\n", pgwire.TLSDisable, pgwire.CodeInvalidAuthorization},
		{"PROXY TCP4 127.0.0.1 127.0.0.1 56324 5432\r\n", pgwire.TLSDisable, pgwire.CodeInvalidAuthorization},
		{"PROXY TCP4 127.0.0.1 127.0.0.1 56324 5432\r\n", pgwire.TLSRequire, ""},
		{"PROXY UNKNOWN\r\n", pgwire.TLSDisable, ""}, // the balancer's own
	} {
		// By a name that is no path: over a Unix socket, a client asks for no TLS.
		dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
			return announced(c.header)(ctx, "unix", path)
		}
		be, err := pgwire.Connect(t.Context(), pgwire.ConnectConfig{
			Address: "balancer:5432", User: "bob", Password: "secret", Database: "postgres", Timeout: patience, Dial: dial,
			TLSMode: c.mode, TLSConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12},
		})
		if got := pgwire.CodeOf(err); got != c.code || err != nil && c.code == "" {
			t.Errorf("%q with sslmode=%s: %v, want SQLSTATE %q", c.header, c.mode, err, c.code)
		}
		if err == nil {
			newWire(t, be).want("SELECT 1 AS n", "[n] (1) SELECT_1 I")
		}
	}
}

// A new weir starts on the address of the old one, which then ends: no client is refused.
func TestNewWeirTakesOverThePort(t *testing.T) {
	t.Parallel()
	db := database(t)
	old := start(t, db, func(c *postgres.Config) { c.ReusePort = true })
	next := start(t, db, func(c *postgres.Config) { c.Listen, c.ReusePort = old.Addr().String(), true })
	var ended atomic.Bool
	var clients errgroup.Group
	served := make([]int, 4) // after the old one ended
	for i := range served {
		clients.Go(func() error {
			for served[i] < 5 {
				alone := ended.Load() // before that a login may be under way when it ends
				be, err := pgwire.Connect(t.Context(), pgwire.ConnectConfig{Address: old.Addr().String(), User: "postgres", Database: db, TLSMode: pgwire.TLSDisable, Timeout: patience})
				if errors.Is(err, syscall.ECONNREFUSED) {
					return err
				}
				if err == nil {
					err = be.Conn.Close()
				}
				if alone && err != nil {
					return fmt.Errorf("after the old one ended: %w", err)
				}
				if alone {
					served[i]++
				}
			}
			return nil
		})
	}
	eventually(t, "both have clients", func() bool { return old.snapshot().Logins > 3 && next.snapshot().Logins > 3 })
	if err := old.stop(); err != nil {
		t.Error(err)
	}
	ended.Store(true)
	if err := clients.Wait(); err != nil {
		t.Error(err)
	}
}
