package postgres_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

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
	results, err := console.Exec(ctxFor(t), "SHOW CLIENTS").ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if shown := fmt.Sprintf("%q", results[0].Rows); !strings.Contains(shown, "127.0.0.1:56324") {
		t.Errorf("clients are %s, want the address that the balancer named", shown)
	}
}
