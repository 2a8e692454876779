package open_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	nethttp "net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/open"
)

// authority signs certificates of brokers.
type authority struct {
	file string // its own certificate
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{file: filepath.Join(t.TempDir(), "ca.pem")}
	template := template("authority", time.Now().Add(time.Hour))
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(a.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return a
}

func template(name string, until time.Time) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: until,
	}
}

func (a *authority) issue(t *testing.T, name string, until time.Time) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template(name, until), a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// front is where clients of a broker connect. It speaks TLS with the certificate
// that it has at the moment, or plain text without one.
type front struct {
	net.Listener
	nats bool // a NATS server says in plain text that TLS follows

	mu    sync.Mutex
	cert  *tls.Certificate
	conns []net.Conn
}

func newFront(t *testing.T) *front {
	t.Helper()
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &front{Listener: l}
	t.Cleanup(func() { f.shows(nil); _ = l.Close() })
	return f
}

func (f *front) port() int { return f.Addr().(*net.TCPAddr).Port }

// shows sets the certificate of connections from now on, and cuts the others.
func (f *front) shows(cert *tls.Certificate) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cert = cert
	for _, c := range f.conns {
		_ = c.Close()
	}
	f.conns = nil
}

func (f *front) Accept() (net.Conn, error) {
	c, err := f.Listener.Accept()
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns = append(f.conns, c)
	if f.cert == nil || f.nats {
		return c, nil
	}
	return tls.Server(c, &tls.Config{Certificates: []tls.Certificate{*f.cert}}), nil
}

// forward hands connections on to a broker until the front is closed.
func (f *front) forward(t *testing.T, addr string) {
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := f.Accept()
			if err != nil {
				return
			}
			all.Go(func() { f.serve(c, addr) })
		}
	})
	t.Cleanup(all.Wait)
	t.Cleanup(func() { f.shows(nil); _ = f.Close() })
}

func (f *front) serve(c net.Conn, addr string) {
	defer c.Close()
	b, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer b.Close()
	from := io.Reader(b)
	if f.nats {
		r := bufio.NewReader(b)
		info, err := r.ReadString('\n')
		if err != nil {
			return
		}
		f.mu.Lock()
		cert := f.cert
		f.mu.Unlock()
		if cert != nil {
			info = strings.Replace(info, "INFO {", `INFO {"tls_required":true,`, 1)
		}
		if _, err := io.WriteString(c, info); err != nil {
			return
		}
		if cert != nil {
			c = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{*cert}})
		}
		from = r
	}
	var back sync.WaitGroup
	back.Go(func() { _, _ = io.Copy(c, from); _ = c.Close() })
	_, _ = io.Copy(b, c)
	_ = b.Close()
	back.Wait()
}

// secured is a broker behind a front, and addresses by which it is reached with TLS,
// trusting what a file holds ("": what the system trusts), and without.
type secured struct {
	front   *front
	secure  func(ca string) string
	without string
}

// securedBrokers are the brokers that can be had here.
var securedBrokers = map[string]func(t *testing.T) secured{
	"nats": func(t *testing.T) secured {
		labtest.RequireNATS(t)
		f := newFront(t)
		f.nats = true
		f.forward(t, labtest.NATS(t, lab.BrokerConfig{Durability: lab.Fast}).Addr())
		at := fmt.Sprintf("localhost:%d?stream=S&subjects=t&create=true&timeout=2s", f.port())
		return secured{f, func(ca string) string { return "tls://" + at + "&ca-file=" + ca }, "nats://" + at}
	},
	"redis": func(t *testing.T) secured {
		labtest.RequireRedis(t)
		f := newFront(t)
		f.forward(t, labtest.Redis(t, lab.BrokerConfig{Durability: lab.Fast}).Addr())
		at := fmt.Sprintf("localhost:%d?timeout=2s", f.port())
		return secured{f, func(ca string) string { return "rediss://" + at + "&ca-file=" + ca }, "redis://" + at}
	},
	"rabbitmq": func(t *testing.T) secured {
		labtest.RequireRabbitMQ(t)
		f := newFront(t)
		server := labtest.RabbitMQ(t, lab.BrokerConfig{Durability: lab.Fast})
		f.forward(t, server.Addr())
		u, err := url.Parse(server.URL())
		if err != nil {
			t.Fatal(err)
		}
		u.Host, u.RawQuery = fmt.Sprintf("localhost:%d", f.port()), "exchange=&declare=queue&timeout=2s"
		return secured{f, func(ca string) string {
			secure := *u
			secure.Scheme = "amqps"
			return secure.String() + "&ca-file=" + ca
		}, u.String()}
	},
	"kafka": func(t *testing.T) secured {
		f := newFront(t)
		c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "t"), kfake.Ports(f.port()),
			kfake.ListenFn(func(string, string) (net.Listener, error) { return f, nil }))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		at := fmt.Sprintf("kafka://localhost:%d?server-name=localhost&timeout=2s&tls=true", f.port())
		plain := fmt.Sprintf("kafka://localhost:%d?timeout=2s", f.port())
		return secured{f, func(ca string) string { return at + "&ca-file=" + ca }, plain}
	},
	"http": func(t *testing.T) secured {
		f := newFront(t)
		s := httptest.NewServer(nethttp.HandlerFunc(func(w nethttp.ResponseWriter, _ *nethttp.Request) {
			w.WriteHeader(nethttp.StatusNoContent)
		}))
		t.Cleanup(s.Close)
		f.forward(t, s.Listener.Addr().String())
		at := fmt.Sprintf("localhost:%d/?timeout=2s", f.port())
		return secured{f, func(ca string) string { return "https://" + at + "&ca-file=" + ca }, "http://" + at}
	},
}

// publish opens a sink and gives it a message.
func publish(t *testing.T, address string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	s, err := open.Open(ctx, strings.TrimSuffix(address, "&ca-file="))
	if err != nil {
		return err
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	return offer(ctx, s)
}

func offer(ctx context.Context, s outbox.Sink) error {
	errs := s.Publish(ctx, []outbox.Message{{ID: outbox.NewID(), Topic: "t", Payload: []byte("{}")}})
	if errs == nil {
		return nil
	}
	return errs[0]
}

// A broker whose certificate is not to be trusted takes nothing, whether it was so
// from the beginning or comes to be so. That spends no attempt of a message, says
// what is wrong, and passes when the certificate is right. Nothing falls back to
// plain text, and plain text finds no broker where TLS is expected.
func TestBrokersThatAreNotToBeTrusted(t *testing.T) {
	for name, broker := range securedBrokers {
		t.Run(name, func(t *testing.T) {
			if name == "rabbitmq" {
				testkit.Long(t, "starts RabbitMQ; package amqp has a short test of TLS")
			}
			t.Parallel()
			b := broker(t)
			ca, stranger := newAuthority(t), newAuthority(t)
			good := ca.issue(t, "localhost", time.Now().Add(time.Hour))
			bad := []struct {
				name string
				cert *tls.Certificate
				says string
			}{
				{"of another name", ca.issue(t, "another.example", time.Now().Add(time.Hour)), "another.example"},
				{"expired", ca.issue(t, "localhost", time.Now().Add(-time.Hour)), "expired"},
				{"of a stranger", stranger.issue(t, "localhost", time.Now().Add(time.Hour)), "unknown authority"},
				{"none", nil, "TLS"},
			}
			tells := func(err error, says string) bool {
				return strings.Contains(strings.ToLower(err.Error()), strings.ToLower(says))
			}
			if name == "nats" { // its client says it in other words
				bad[3].says = "secure connection"
			} else if name == "http" {
				bad[3].says = "to HTTPS client"
			}
			refused := func(what, says string, err error) {
				t.Helper()
				switch {
				case err == nil:
					t.Errorf("%s: the message was taken", what)
				case !outbox.IsUnavailable(err):
					t.Errorf("%s: %v: that spends an attempt", what, err)
				case !tells(err, says):
					t.Errorf("%s: %v: does not speak of %q", what, err, says)
				}
			}
			b.front.shows(good)
			if err := publish(t, b.secure(ca.file)); err != nil {
				t.Fatal("a certificate that is right:", err)
			}
			refused("without the authority", "unknown authority", publish(t, b.secure("")))
			if err := publish(t, b.without); err == nil || !outbox.IsUnavailable(err) && !outbox.IsDoubtful(err) {
				t.Errorf("plain text: %v", err)
			}
			for _, c := range bad {
				b.front.shows(c.cert)
				refused("certificate "+c.name, c.says, publish(t, b.secure(ca.file)))
			}

			b.front.shows(good)
			s, err := open.Open(t.Context(), b.secure(ca.file))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}()
			for _, c := range bad {
				b.front.shows(c.cert)
				// The first call may meet the connection's end, and nothing else.
				testkit.Await(t, func() bool {
					err = offer(t.Context(), s)
					if err == nil || outbox.IsUnavailable(err) && tells(err, c.says) {
						return true
					}
					if !outbox.IsUnavailable(err) && !outbox.IsDoubtful(err) {
						t.Fatalf("then a certificate %s: %v: that spends an attempt", c.name, err)
					}
					return false
				}, func() string { return fmt.Sprintf("then a certificate %s: %v", c.name, err) })
				refused("then a certificate "+c.name, c.says, err)
				b.front.shows(good)
				testkit.Await(t, func() bool {
					err = offer(t.Context(), s)
					return err == nil
				}, func() string { return fmt.Sprintf("the certificate is right again: %v", err) })
			}
		})
	}
}
