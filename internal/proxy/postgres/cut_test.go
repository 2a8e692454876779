package postgres_test

import (
	"bytes"
	"io"
	"net"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// TestARowThatIsCutIsNotFilledUp loses the server's connection in the middle of a row that
// was passed on as it came. Whatever weir adds, the client takes for the rest of the row.
func TestARowThatIsCutIsNotFilledUp(t *testing.T) {
	t.Parallel()
	db := database(t)
	gateway := proxytest.Gateway(t, server(t).Addr(), func(client, be net.Conn) {
		done := func() { _ = client.Close(); _ = be.Close() }
		go func() { _, _ = io.Copy(be, client); done() }()
		go func() {
			defer done()
			buf, left := make([]byte, 4096), 0
			for {
				n, err := be.Read(buf)
				if err != nil {
					return
				}
				if i := bytes.Index(buf[:n], []byte("cut_here")); i >= 0 { // the name of the column
					left = i + 100_000 - n // the row ends 38 bytes behind that
				} else if left > 0 {
					if n = min(n, left); n == left {
						_, _ = client.Write(buf[:n])
						return
					}
					left -= n
				}
				if _, err := client.Write(buf[:n]); err != nil {
					return
				}
			}
		}()
	})
	w := start(t, db, func(c *postgres.Config) { c.Postgres.Address = gateway })
	for _, before := range []string{"SELECT 1", "BEGIN"} {
		c := w.wire()
		c.ask(before)
		c.send(query("SELECT repeat('x', 100000) AS cut_here"))
		for _, m := range c.end() {
			if m.typ == pgwire.ServerDataRow {
				t.Errorf("behind %s the client was given a row that ends with %q", before, m.body[max(0, len(m.body)-60):])
			}
		}
	}
}

// TestWhatIsResetIsToldBeforeTheNextText: a client writes its texts in the encoding, and
// with the backslashes, of which it was told last.
func TestWhatIsResetIsToldBeforeTheNextText(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	for _, reset := range []string{
		"DISCARD ALL", "RESET ALL", "RESET client_encoding; RESET standard_conforming_strings",
		"BEGIN; RESET ALL", "RESET ALL; SELECT 1/0",
	} {
		c := w.wire(pgwire.Param{Name: "client_encoding", Value: "LATIN1"}, pgwire.Param{Name: "options", Value: "-c standard_conforming_strings=off"})
		for range 2 {
			c.ask(reset)
			if enc, conforming := c.params["client_encoding"], c.params["standard_conforming_strings"]; enc != "LATIN1" || conforming != "off" {
				t.Errorf("behind %s the client knows of client_encoding %s, standard_conforming_strings %s", reset, enc, conforming)
			}
			c.ask("ROLLBACK")
		}
		c.send(query(reset), query("ROLLBACK"), query("SHOW client_encoding"))
		c.ready()
		c.ready()
		if got := render(c.ready()); got != "[client_encoding] (LATIN1) SHOW I" {
			t.Errorf("in one piece with %s: %s", reset, got)
		}
	}
}
