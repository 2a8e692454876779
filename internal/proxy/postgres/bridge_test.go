package postgres_test

import (
	"crypto/tls"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// TestEndsWithATLSClientThatDoesNotRead: weir ends, though a client with TLS has stopped
// reading in the middle of an answer and stays.
func TestEndsWithATLSClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	own := authServer(t, lab.SCRAM, lab.TLSRequired)
	pair, err := tls.LoadX509KeyPair(own.ServerCert().Cert, own.ServerCert().Key)
	if err != nil {
		t.Fatal(err)
	}
	w := startFor(t, own, "postgres", func(c *postgres.Config) {
		c.Postgres.TLSMode = pgwire.TLSRequire
		c.ClientTLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	})
	be, err := pgwire.Connect(ctxFor(t), pgwire.ConnectConfig{
		Address: w.Addr().String(), User: "bob", Database: "postgres", Password: "secret", TLSMode: pgwire.TLSRequire,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = be.Conn.Close() }()
	if _, err := be.Conn.Write(pgwire.AppendQuery(nil, "SELECT repeat('x', 1000000) FROM generate_series(1, 200)")); err != nil {
		t.Fatal(err)
	}
	var sent uint64
	same := 0
	eventually(t, "the client takes no more", func() bool {
		was := sent
		if sent = proxytest.Pool(t, w, "postgres", "bob").Sent; sent != was {
			same = 0
		}
		same++
		return sent > 1<<20 && same > 10
	})
	if err := w.stop(); err != nil {
		t.Error(err)
	}
}
