package mywire

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
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
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
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

func (a *authority) rootFile() string {
	a.t.Helper()
	path := filepath.Join(a.t.TempDir(), "root.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
	if err := os.WriteFile(path, text, 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// door is the smallest server that Accept and Authenticate make: it lets
// clients in and answers every query with one row, "user tls" or "user plain".
type door struct {
	cfg AcceptConfig
	// secrets by user; who is not in it is unknown.
	secrets map[string]Secret
	// target is where logins are relayed to, if set; secrets are not used then.
	target *ConnectConfig

	addr string

	mu   sync.Mutex
	idle sync.Cond // active has become 0
	// Events, in order.
	active  int // connections being served
	errs    []error
	keys    []*ClientKeys
	clients []*Client
}

// open listens on network ("tcp" or "unix") until the test ends.
func (d *door) open(t *testing.T, network string) *door {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		dir, err := os.MkdirTemp("", "w")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		address = filepath.Join(dir, "s")
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
	return last(d.errs)
}

func (d *door) lastKeys() *ClientKeys {
	d.settle()
	d.mu.Lock()
	defer d.mu.Unlock()
	return last(d.keys)
}

func (d *door) lastClient() *Client {
	d.settle()
	d.mu.Lock()
	defer d.mu.Unlock()
	return last(d.clients)
}

func last[T any](all []T) (t T) {
	if len(all) > 0 {
		t = all[len(all)-1]
	}
	return t
}

func (d *door) serve(ctx context.Context, conn net.Conn) error {
	if d.target != nil {
		return d.relay(ctx, conn)
	}
	c, err := Accept(ctx, conn, d.cfg)
	if err != nil {
		return err
	}
	if err := d.admit(ctx, c, c.Authenticate); err != nil {
		return err
	}
	return d.answer(ctx, c)
}

func (d *door) admit(ctx context.Context, c *Client, authenticate func(context.Context, Secret) (*ClientKeys, error)) error {
	keys, err := authenticate(ctx, d.secrets[c.Response.User])
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.clients, d.keys = append(d.clients, c), append(d.keys, keys)
	d.mu.Unlock()
	return c.Welcome(ctx, &OK{Status: StatusAutocommit})
}

// relay lets the target decide, and then copies bytes.
func (d *door) relay(ctx context.Context, conn net.Conn) error {
	p, err := Dial(ctx, *d.target)
	if err != nil {
		return err
	}
	cfg := d.cfg
	cfg.Version, cfg.Salt, cfg.Plugin = p.Greeting.Version, p.Greeting.Salt, p.Greeting.Plugin
	cfg.Caps = d.target.withDefaults().Caps & p.Greeting.Caps
	c, err := Accept(ctx, conn, cfg)
	if err != nil {
		p.GiveUp()
		return err
	}
	result, err := Relay(ctx, c, p)
	if err != nil {
		return err
	}
	defer result.Server.Conn.Close()
	d.mu.Lock()
	d.clients, d.keys = append(d.clients, c), append(d.keys, result.Keys)
	d.mu.Unlock()
	if err := c.Welcome(ctx, &result.Server.OK); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(c.Conn, result.Server.Conn)
		_ = c.Conn.Close()
	}()
	_, _ = io.Copy(result.Server.Conn, c.Conn)
	return nil
}

func (d *door) answer(ctx context.Context, c *Client) error {
	l := link{conn: c.Conn, max: 1 << 20}
	for {
		l.seq = 0
		payload, err := l.read()
		if errors.Is(err, io.EOF) || (err == nil && payload[0] == ComQuit) {
			return nil
		}
		if err != nil {
			return err
		}
		switch payload[0] {
		case ComQuery:
			if q, err := ParseQuery(payload, c.Caps); err != nil || string(q.SQL) != "SELECT who" {
				_, err = c.Conn.Write(AppendError(nil, 1, NewError(ErrSyntax, "I know one question only")))
				if err != nil {
					return err
				}
				continue
			}
			row := c.Response.User + " plain"
			if c.TLS != nil {
				row = c.Response.User + " tls"
			}
			_, err = c.Conn.Write(AppendTextResult(nil, c.Caps, StatusAutocommit, []string{"who"}, [][][]byte{{[]byte(row)}}))
		case ComPing, ComInitDB:
			_, err = c.Conn.Write(AppendOK(nil, 1, c.Caps, &OK{Status: StatusAutocommit}))
		case ComChangeUser:
			cu, perr := ParseChangeUser(payload, c.Caps)
			if perr != nil {
				return perr
			}
			c = ChangedUser(c.Conn, c.Secure(), c.Salt, c.Caps, cu)
			err = d.admit(ctx, c, c.Authenticate)
		default:
			_, err = c.Conn.Write(AppendError(nil, 1, NewError(ErrUnknownCommand, "Unknown command")))
		}
		if err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
}
