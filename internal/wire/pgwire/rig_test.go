package pgwire

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// authority signs the certificates of one test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	a.cert, a.key = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

func (a *authority) sign(c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// issue returns a certificate for name, which is also its DNS name.
func (a *authority) issue(name string) tls.Certificate {
	a.t.Helper()
	cert, key := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// rootFile writes the authority's certificate, pairFiles a certificate and its
// key, for programs that read files.
func (a *authority) rootFile() string {
	return writePEM(a.t, "root.crt", "CERTIFICATE", a.cert.Raw)
}

func (a *authority) pairFiles(c tls.Certificate) (cert, key string) {
	a.t.Helper()
	der, err := x509.MarshalECPrivateKey(c.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		a.t.Fatal(err)
	}
	return writePEM(a.t, "c.crt", "CERTIFICATE", c.Certificate[0]), writePEM(a.t, "c.key", "EC PRIVATE KEY", der)
}

func writePEM(t *testing.T, name, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// door is the smallest server that Accept and Authenticate make: it lets
// clients in and answers every query with one row, "user tls" or "user plain".
type door struct {
	cfg    AcceptConfig
	method AuthMethod
	// secrets by user; who is not in it is unknown.
	secrets map[string]string
	// auth replaces Authenticate where it is set.
	auth func(ctx context.Context, conn net.Conn, s *Startup) error

	addr string

	mu       sync.Mutex
	idle     sync.Cond     // active has become 0
	active   int           // connections being served
	errs     []error       // of logins, in the order in which they ended
	keys     []*ClientKeys // of logins that succeeded
	startups []*Startup
}

// open listens on network ("tcp" or "unix") until the test ends.
func (d *door) open(t *testing.T, network string) *door {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), ".s.PGSQL.5432")
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	d.addr = l.Addr().String()
	d.idle.L = &d.mu
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			d.mu.Lock()
			d.active++
			d.mu.Unlock()
			wg.Go(func() {
				defer conn.Close()
				defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
				err := d.serve(ctx, conn)
				d.mu.Lock()
				defer d.mu.Unlock()
				if err != nil {
					d.errs = append(d.errs, err)
				}
				if d.active--; d.active == 0 {
					d.idle.Broadcast()
				}
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
		wg.Wait()
	})
	return d
}

// settle waits until no connection is being served. The clients must have closed
// theirs: what they were told, they heard before the door made its own notes.
func (d *door) settle() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.active > 0 {
		d.idle.Wait()
	}
}

// lastErr settles and returns the error of the last login that failed.
func (d *door) lastErr() error {
	d.settle()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.errs) == 0 {
		return nil
	}
	return d.errs[len(d.errs)-1]
}

func (d *door) lastKeys() *ClientKeys {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.keys) == 0 {
		return nil
	}
	return d.keys[len(d.keys)-1]
}

func (d *door) lastStartup() *Startup {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.startups) == 0 {
		return nil
	}
	return d.startups[len(d.startups)-1]
}

func (d *door) serve(ctx context.Context, raw net.Conn) error {
	conn, s, err := Accept(ctx, raw, d.cfg)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.startups = append(d.startups, s)
	d.mu.Unlock()
	if s.Kind == StartupCancel {
		return nil
	}
	if d.auth != nil {
		err = d.auth(ctx, conn, s)
	} else {
		err = d.authenticate(ctx, conn, s)
	}
	if err != nil {
		return err
	}
	key := []byte("1234")
	if s.Version >= Version32 {
		key = []byte(strings.Repeat("k", 32))
	}
	hello := AppendParameterStatus(nil, "server_version", "15.0")
	hello = AppendParameterStatus(hello, "client_encoding", "UTF8")
	hello = AppendReadyForQuery(AppendBackendKeyData(hello, 77, key), StatusIdle)
	if _, err := conn.Write(hello); err != nil {
		return err
	}
	return d.answer(conn, s)
}

func (d *door) authenticate(ctx context.Context, conn net.Conn, s *Startup) error {
	secret, err := ParseSecret(d.secrets[s.User])
	if err != nil {
		return err
	}
	keys, err := Authenticate(ctx, conn, s.User, d.method, secret)
	if err == nil {
		d.mu.Lock()
		d.keys = append(d.keys, keys)
		d.mu.Unlock()
	}
	return err
}

func (d *door) answer(conn net.Conn, s *Startup) error {
	l := link{conn: conn, max: 1 << 20}
	row := s.User + " plain"
	if s.TLS != nil {
		row = s.User + " tls"
	}
	for {
		typ, _, err := l.read()
		if errors.Is(err, io.EOF) || typ == ClientTerminate {
			return nil
		}
		if err != nil {
			return err
		}
		if typ != ClientQuery {
			continue
		}
		msg := AppendRowDescription(nil, []Field{{Name: "who", TypeOID: 25, TypeSize: -1, TypeMod: -1}})
		msg = AppendDataRow(msg, [][]byte{[]byte(row)})
		if err := l.write(AppendReadyForQuery(AppendCommandComplete(msg, "SELECT 1"), StatusIdle)); err != nil {
			return err
		}
	}
}

// psql runs the real client once, against conninfo and nothing of this user's
// own configuration. It returns what psql printed, errors included.
func psql(t *testing.T, conninfo string, env ...string) (out string, ok bool) {
	t.Helper()
	labtest.RequirePostgres(t)
	bin, _, err := lab.FindPostgres(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(bin, "psql")
	if _, err := os.Stat(program); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skipf("no psql: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-X", "-A", "-t", "-w", "-c", "select who", conninfo)
	cmd.Env = append([]string{"HOME=" + t.TempDir(), "LC_ALL=C", "PATH=/usr/bin:/bin"}, env...)
	text, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(text)), err == nil
}

// conninfo turns host:port or a socket path into libpq's words.
func conninfo(addr, rest string) string {
	if strings.HasPrefix(addr, "/") {
		return "host=" + filepath.Dir(addr) + " port=5432 " + rest
	}
	host, port, _ := net.SplitHostPort(addr)
	return "host=" + host + " port=" + port + " " + rest
}
