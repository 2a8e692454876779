package process_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"database/sql"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// An authority signs certificates.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  []byte
	next int64
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	pair := a.sign("authority", time.Hour, true)
	a.key, a.cert, a.pem = pair.PrivateKey.(*ecdsa.PrivateKey), pair.Leaf, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})
	return a
}

// sign makes a certificate for name that holds for so long from now on; it may have ended
// already.
func (a *authority) sign(name string, holds time.Duration, isAuthority bool) tls.Certificate {
	a.t.Helper()
	a.next++
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	now := time.Now()
	c := &x509.Certificate{
		SerialNumber: big.NewInt(a.next), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-48 * time.Hour), NotAfter: now.Add(holds),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: isAuthority,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	parent, signer := a.cert, a.key
	if isAuthority {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// TestClientCertificates logs in by certificates that hold, that have expired, of an
// authority that weir does not know, and of one that was replaced by a reload, as is weir's
// own certificate.
func TestClientCertificates(t *testing.T) {
	pg := sharedPostgres.Get(t)
	testClientCertificates(t, pg.User(), func(address string, pair tls.Certificate) (string, error) {
		cfg, err := pgx.ParseConfig(fmt.Sprintf("postgres://%s@%s/postgres?sslmode=require", pg.User(), address))
		if err != nil {
			t.Fatal(err)
		}
		cfg.TLSConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		if err != nil {
			return "", err
		}
		defer conn.Close(context.Background())
		_, err = conn.Exec(t.Context(), "SELECT 1")
		return conn.PgConn().Conn().(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName, err
	}, "--postgres", pg.DSN("postgres"), "--auth", "cert", "--client-tls-mode", "require")
}

// TestClientCertificatesOfMySQL does the same there, where a certificate is demanded beside
// the password.
func TestClientCertificatesOfMySQL(t *testing.T) {
	my := labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, Light: true, BufferPool: "16M"})
	if err := my.CreateUser(t.Context(), lab.MySQLUser{Name: "app", Password: "right"}); err != nil {
		t.Fatal(err)
	}
	testClientCertificates(t, "app", func(address string, pair tls.Certificate) (peer string, err error) {
		cfg := mysql.NewConfig()
		cfg.User, cfg.Passwd, cfg.Net, cfg.Addr, cfg.Logger = "app", "right", "tcp", address, &mysql.NopLogger{}
		cfg.TLS = &tls.Config{
			InsecureSkipVerify:   true, // which certificate it is, is looked at
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
			VerifyConnection: func(s tls.ConnectionState) error {
				peer = s.PeerCertificates[0].Subject.CommonName
				return nil
			},
		}
		connector, err := mysql.NewConnector(cfg)
		if err != nil {
			t.Fatal(err)
		}
		db := sql.OpenDB(connector)
		defer db.Close()
		err = db.PingContext(t.Context())
		return peer, err
	}, "--mysql", my.DSN(""), "--client-tls-mode", "verify-full")
}

// testClientCertificates runs weir with further options and logs in as a user. login returns
// whose certificate weir has shown.
func testClientCertificates(t *testing.T, user string, login func(address string, pair tls.Certificate) (string, error), options ...string) {
	old, fresh := newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		clitest.Write(t, path, string(content))
		return path
	}
	install := func(own tls.Certificate) {
		key, err := x509.MarshalECPrivateKey(own.PrivateKey.(*ecdsa.PrivateKey))
		if err != nil {
			t.Fatal(err)
		}
		file("weir.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]}))
		file("weir.key", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: key}))
	}
	install(old.sign("weir", time.Hour, false))
	log, stop := startProxy(t, append(options, "--client-tls-cert", filepath.Join(dir, "weir.crt"), "--client-tls-key", filepath.Join(dir, "weir.key"),
		"--client-tls-ca", file("ca.crt", old.pem))...)
	address := log.Await("weir proxy listens")["address"].(string)
	valid := old.sign(user, time.Hour, false)
	if name, err := login(address, valid); err != nil || name != "weir" {
		t.Errorf("by a certificate that holds: %v; weir's is of %q", err, name)
	}
	for name, pair := range map[string]tls.Certificate{
		"that has expired":                    old.sign(user, -time.Hour, false),
		"of somebody else":                    old.sign("somebody", time.Hour, false),
		"of an authority that nobody trusts":  fresh.sign(user, time.Hour, false),
		"of the authority, that is no user's": {Certificate: [][]byte{old.cert.Raw}, PrivateKey: old.key},
	} {
		if _, err := login(address, pair); err == nil {
			t.Errorf("by a certificate %s somebody was let in", name)
		}
	}
	file("ca.crt", fresh.pem)
	install(old.sign("weir renewed", time.Hour, false))
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	log.Await("configuration reloaded")
	if _, err := login(address, valid); err == nil {
		t.Error("by a certificate of an authority that was replaced somebody was let in")
	}
	if name, err := login(address, fresh.sign(user, time.Hour, false)); err != nil || name != "weir renewed" {
		t.Errorf("by a certificate of the new authority: %v; weir's is of %q", err, name)
	}
	stop()
}
