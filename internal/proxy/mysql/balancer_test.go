package mysql_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"path/filepath"
	"testing"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
	"github.com/weirdb/weir/internal/wire/proxyproto"
)

// A balancer on weir's own host says whose connection it passes on: the client has
// that address, and is not taken for a local one.
func TestClientsBehindABalancerHaveTheirOwnAddress(t *testing.T) {
	t.Parallel()
	trusted, err := proxyproto.ParseTrusted("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, "", func(c *mysql.Config) { c.ProxyProtocol = trusted })
	behind := func(header string) (*wire, error) {
		return w.tryDial(func(c *mywire.ConnectConfig) {
			c.Dial = announced(header)
		})
	}
	if _, err := behind("PROXY TCP4 192.0.2.1 127.0.0.1 56324 3306\r\n"); code(err) != mywire.ErrAccessDenied {
		t.Errorf("what the server grants weir was lent to a client from afar: %v", err)
	}
	c, err := behind("PROXY TCP4 127.0.0.1 127.0.0.1 56324 3306\r\n")
	if err != nil {
		t.Fatalf("a local client behind the balancer: %v", err)
	}
	if got := c.one("SELECT 1"); got != "1" {
		t.Errorf("SELECT 1 answers %s", got)
	}
	if _, err := behind("\x00\x00\x00\x00"); err == nil {
		t.Error("a connection without a header got in from where one is demanded")
	}
	console, err := w.tryDial(func(c *mywire.ConnectConfig) {
		c.Database, c.Dial = "weir", announced("PROXY UNKNOWN\r\n") // the balancer's own connection
	})
	if err != nil {
		t.Fatal(err)
	}
	console.send(mywire.AppendQuery(nil, console.Caps, "SHOW CLIENTS"))
	var shown []byte
	for ends := 0; ends < 2; {
		_, payload := console.packet()
		if mywire.IsError(payload) {
			t.Fatalf("SHOW CLIENTS: %q", payload)
		}
		if mywire.IsEnd(payload, console.Caps) {
			ends++
			if console.Caps&mywire.CapDeprecateEOF != 0 {
				break
			}
		}
		shown = append(shown, payload...)
	}
	if !bytes.Contains(shown, []byte("127.0.0.1:56324")) {
		t.Errorf("clients are %q, want the address that the balancer named", shown)
	}
}

// A balancer that reaches weir over a Unix socket passes on clients from elsewhere: they
// need TLS where it is demanded, and can have it.
func TestClientsBehindALocalBalancerNeedTLS(t *testing.T) {
	t.Parallel()
	trusted, err := proxyproto.ParseTrusted("unix")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "weir.sock")
	w := start(t, "", func(c *mysql.Config) {
		c.Listen, c.ProxyProtocol = path, trusted
		c.ClientTLS, c.ClientTLSMode = serverTLS(t), mywire.TLSRequired
	})
	for _, c := range []struct {
		header string
		mode   mywire.TLSMode
		code   uint16
	}{
		{"PROXY TCP4 192.0.2.1 192.0.2.2 56324 3306\r\n", mywire.TLSDisabled, mywire.ErrSecureTransport},
		{"PROXY TCP4 127.0.0.1 127.0.0.1 56324 3306\r\n", mywire.TLSDisabled, mywire.ErrSecureTransport},
		{"PROXY TCP4 127.0.0.1 127.0.0.1 56324 3306\r\n", mywire.TLSRequired, 0},
		{"PROXY UNKNOWN\r\n", mywire.TLSDisabled, 0}, // the balancer's own
	} {
		conn, err := w.tryDial(func(cfg *mywire.ConnectConfig) {
			cfg.Network, cfg.Address, cfg.TLSMode = "tcp", "balancer:3306", c.mode
			cfg.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
				return announced(c.header)(ctx, "unix", path)
			}
		})
		if c.code == 0 && err != nil || c.code != 0 && code(err) != c.code {
			t.Errorf("%q with TLS mode %s: %v, want error %d", c.header, c.mode, err, c.code)
		}
		if err == nil {
			if got := conn.one("SELECT 1"); got != "1" {
				t.Errorf("SELECT 1 answers %s", got)
			}
		}
	}
}

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
