package peer

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
	"github.com/weirdb/weir/internal/testkit"
)

// authority issues certificates for a test.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.cert, a.key = a.sign(t, "ca", &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

// sign makes a certificate, by the authority's key if there is one, and writes
// it with its key to files called name.
func (a *authority) sign(t testing.TB, name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.Subject = pkix.Name{CommonName: name}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for ext, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(a.file(name+ext), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// issue makes a certificate for both sides of a connection to 127.0.0.1 and
// loads it, together with the authority that trusts.
func (a *authority) issue(t testing.TB, name string, trusts *authority) *Certificates {
	t.Helper()
	a.sign(t, name, &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	c, err := LoadCertificates(a.file(name+".crt"), a.file(name+".key"), trusts.file("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestHandshakesThatFail(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	good, bad := ours.issue(t, "good", ours), theirs.issue(t, "bad", theirs)
	stranger := theirs.issue(t, "stranger", ours) // trusts the other side, but is not trusted by it
	misnamed := ours.issue(t, "misnamed", ours)
	misnamed.ServerName = "other.example"
	secret, other := []byte("swordfish"), []byte("herring")
	for _, tt := range []struct {
		name   string
		server func(*Options) // replica 1, which knows replica 2
		dial   func(*dialer)  // replica 2, if not changed
		code   Code           // the error that the dialing side gets
		remote bool           // the other side refuses
		words  string         // in the reason
		counts bool           // the dialed side counts it as a refusal
	}{
		{"another cluster", nil, func(d *dialer) { d.hello.Cluster = "production" }, CodeCluster, true, `"test"`, true},
		{"another cluster, client", nil, func(d *dialer) { d.hello = hello{Role: roleClient, Cluster: "x"} }, CodeCluster, true, `"test"`, true},
		{"another replica", nil, func(d *dialer) { d.hello.To = 9 }, CodeReplica, true, "replica 1", true},
		{"unknown replica", nil, func(d *dialer) { d.hello.Self.ID = 3 }, CodeUnknown, true, "replica 3", true},
		{"the dialed one's id", nil, func(d *dialer) { d.hello.Self.ID = 1 }, CodeTaken, true, "replica 1", true},
		{"an id that no replica has", nil, func(d *dialer) { d.hello.Self.ID = uint64(FirstClient) }, CodeMalformed, true, "out of range", true},
		{"a client with a replica's id", nil, func(d *dialer) { d.hello.Role = roleClient }, CodeMalformed, true, "client", true},
		{"unknown role", nil, func(d *dialer) { d.hello.Role = roleEnd }, CodeMalformed, true, "role", true},
		{"secret there, none here", func(o *Options) { o.Secret = secret }, nil, CodeUnauthenticated, false, "demands a secret", false},
		{"secret here, none there", nil, func(d *dialer) { d.secret = secret }, CodeUnauthenticated, false, "has no secret", false},
		{"two secrets", func(o *Options) { o.Secret = secret }, func(d *dialer) { d.secret = other }, CodeUnauthenticated, true, "not proven", true},
		{
			"a client's secret for a replica", func(o *Options) { o.Secret, o.ClientSecret = secret, other },
			func(d *dialer) { d.secret = other }, CodeUnauthenticated, true, "not proven", true,
		},
		{
			"a replica's secret for a client", func(o *Options) { o.Secret, o.ClientSecret = secret, other },
			func(d *dialer) { d.hello, d.secret = hello{Role: roleClient}, secret }, CodeUnauthenticated, true, "not proven", true,
		},
		{"plain to TLS", func(o *Options) { o.TLS = good }, nil, CodeWantsTLS, true, "TLS", true},
		{"TLS to plain", nil, func(d *dialer) { d.certs = good }, CodeNoTLS, false, "TLS", true},
		{"certificate of another authority here", func(o *Options) { o.TLS = good }, func(d *dialer) { d.certs = stranger }, CodeUnauthenticated, true, "certificate", true},
		{"certificate of another authority there", func(o *Options) { o.TLS = bad }, func(d *dialer) { d.certs = good }, CodeUnauthenticated, false, "certificate", true},
		{"certificate of another name there", func(o *Options) { o.TLS = good }, func(d *dialer) { d.certs = misnamed }, CodeUnauthenticated, false, "other.example", true},
		{
			"TLS without the secret", func(o *Options) { o.TLS, o.Secret = good, secret },
			func(d *dialer) { d.certs, d.secret = good, other }, CodeUnauthenticated, true, "not proven", true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := open(t, 1, func(o *Options) {
				o.Peers = map[uint64]string{2: "127.0.0.1:1"}
				if tt.server != nil {
					tt.server(o)
				}
			})
			d := replicaTwo()
			if tt.dial != nil {
				tt.dial(d)
			}
			_, err := d.open(t.Context(), n.Addr())
			var refused *HandshakeError
			if !errors.As(err, &refused) {
				t.Fatalf("error = %v, want a HandshakeError", err)
			}
			if refused.Code != tt.code || refused.Remote != tt.remote || !strings.Contains(refused.Reason, tt.words) {
				t.Errorf("%+v, want %v, remote %v, %q", refused, tt.code, tt.remote, tt.words)
			}
			if tt.counts {
				testkit.Eventually(t, "the count of a refusal", func() bool {
					sum := uint64(0)
					for _, n := range n.Stats().Refused {
						sum += n
					}
					return sum == 1
				})
			}
			if ups := seen(n.recorder, func() int { return len(n.ups) }); ups != 0 {
				t.Errorf("%d connections came up", ups)
			}
		})
	}
}

// replicaTwo dials replica 1 as replica 2 does.
func replicaTwo() *dialer {
	return &dialer{
		hello:   hello{Role: roleReplica, Cluster: "test", To: 1, Self: self{ID: 2, Address: "127.0.0.1:1"}},
		connect: patience, handshake: patience, maxFrame: maxFrame,
	}
}

func TestHandshakesThatSucceed(t *testing.T) {
	ca := newAuthority(t)
	for name, tweak := range map[string]func(*Options){
		"nothing":     func(*Options) {},
		"secret":      func(o *Options) { o.Secret = []byte("swordfish") },
		"TLS":         func(o *Options) { o.TLS = ca.issue(t, "a", ca) },
		"both":        func(o *Options) { o.TLS, o.Secret = ca.issue(t, "b", ca), []byte("swordfish") },
		"two secrets": func(o *Options) { o.Secret, o.ClientSecret = []byte("swordfish"), []byte("herring") },
	} {
		t.Run(name, func(t *testing.T) {
			nodes := mesh(t, 3, tweak)
			c, _ := dialClient(t, nodes[2].Addr(), func(o *ClientOptions) {
				o.TLS, o.Secret = nodes[0].opts.TLS, nodes[0].opts.ClientSecret
			})
			nodes[2].awaitUp(t, FirstClient)
			mustSend(t, c.Send, numbered(1, 100))
			checkNumbered(t, nodes[2].awaitCount(t, FirstClient, 100), 100)
			mustSend(t, nodes[2].to(1), numbered(1, 5000))
			checkNumbered(t, nodes[0].awaitCount(t, 3, 5000), 5000)
			who := seen(nodes[0].recorder, func() Remote { return nodes[0].up[3] })
			if (who.TLS != nil) != (nodes[0].opts.TLS != nil) {
				t.Errorf("TLS of the connection: %v", who.TLS)
			}
		})
	}
}

func TestCertificatesAreTakenUpWhenTheyChange(t *testing.T) {
	first, second := newAuthority(t), newAuthority(t)
	server := first.issue(t, "server", first)
	n := open(t, 1, func(o *Options) { o.TLS = server })
	dialWith := func(c *Certificates) error {
		conn, err := Dial(t.Context(), n.Addr(), ClientOptions{TLS: c, Receive: func([]wire.Message) {}})
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	before, after := first.issue(t, "before", first), second.issue(t, "after", second)
	if err := dialWith(before); err != nil {
		t.Fatal(err)
	}
	if err := dialWith(after); err == nil {
		t.Fatal("a certificate of another authority was accepted")
	}
	// Half of a replacement leaves what was there.
	if err := os.WriteFile(first.file("server.crt"), []byte("half a certific"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := dialWith(before); err != nil {
		t.Fatalf("in the middle of a replacement: %v", err)
	}
	second.issue(t, "server", second)
	for _, name := range []string{"server.crt", "server.key", "ca.crt"} {
		content, err := os.ReadFile(second.file(name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(first.file(name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := dialWith(after); err != nil {
		t.Errorf("after a replacement: %v", err)
	}
	if err := dialWith(before); err == nil {
		t.Error("after a replacement the old authority is still trusted")
	}
	if _, err := LoadCertificates(first.file("none"), first.file("server.key"), first.file("ca.crt")); err == nil {
		t.Error("a certificate that does not exist was loaded")
	}
	if _, err := LoadCertificates(first.file("server.crt"), first.file("server.key"), first.file("server.key")); err == nil {
		t.Error("a key was taken for an authority")
	}
}

// TestDialerChecksWhoAnswers checks which challenges a dialer refuses.
func TestDialerChecksWhoAnswers(t *testing.T) {
	d := replicaTwo()
	for name, tt := range map[string]struct {
		c    challenge
		code Code
	}{
		"as wanted":       {challenge{Cluster: "test", Self: self{ID: 1}}, 0},
		"another cluster": {challenge{Cluster: "production", Self: self{ID: 1}}, CodeCluster},
		"another replica": {challenge{Cluster: "test", Self: self{ID: 3}}, CodeReplica},
		"wants a secret":  {challenge{Cluster: "test", Self: self{ID: 1}, Secret: true}, CodeUnauthenticated},
	} {
		err := d.check(&tt.c)
		var refused *HandshakeError
		if errors.As(err, &refused) != (tt.code != 0) || refused != nil && (refused.Code != tt.code || refused.Remote) {
			t.Errorf("%s: %v, want %v", name, err, tt.code)
		}
	}
	err := &HandshakeError{Code: CodeTaken, Reason: "it is", Remote: true, Err: io.EOF}
	if got := err.Error(); got != "refused by the other side: id taken: it is" || !errors.Is(err, io.EOF) {
		t.Error(got)
	}
	if got := Code(99).String(); got != "code 99" {
		t.Error(got)
	}
}

// TestImpostorIsNotBelieved dials an impostor that asks for proof of the secret and does not
// know it.
func TestImpostorIsNotBelieved(t *testing.T) {
	n := open(t, 1, func(o *Options) {
		o.Secret, o.Peers = []byte("guess"), map[uint64]string{2: "127.0.0.1:1"}
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	var serving sync.WaitGroup
	defer serving.Wait()
	serving.Go(func() { // accepts any proof
		nc, err := ln.Accept()
		if err != nil {
			return
		}
		defer func() { _ = nc.Close() }()
		_, _ = io.ReadFull(nc, make([]byte, prefaceBytes))
		in := &inbox{src: nc, max: maxHandshake}
		body, err := expect(in, frameHello)
		if err != nil {
			t.Error(err)
			return
		}
		said := bytes.Clone(body)
		c := challenge{Cluster: "test", Self: n.self(), Nonce: newNonce([8]byte{}), Secret: true}
		answer := c.append(nil)
		if err := writeFrame(nc, frameChallenge, answer); err != nil {
			t.Error(err)
		}
		proof, err := expect(in, frameProof)
		if err != nil {
			t.Error(err)
			return
		}
		sum := transcript(newHead(), said, answer, nil)
		if bytes.Equal(proof, prove([]byte("guess"), labelDial, sum)) {
			t.Error("the guess was right")
		}
		_ = writeFrame(nc, frameWelcome, proof) // the proof sent back is no proof
	})
	d := replicaTwo()
	d.secret = []byte("swordfish")
	var refused *HandshakeError
	if _, err := d.open(t.Context(), ln.Addr().String()); !errors.As(err, &refused) || refused.Code != CodeUnauthenticated || refused.Remote {
		t.Errorf("error = %v", err)
	}
}

// TestRecordedHandshakeOpensNothing replays a recorded handshake of an honest replica.
func TestRecordedHandshakeOpensNothing(t *testing.T) {
	n := open(t, 1, func(o *Options) {
		o.Secret, o.Peers = []byte("swordfish"), map[uint64]string{2: "127.0.0.1:1"}
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	recorded := make(chan []byte, 1)
	go func() { // a tap between the two
		defer close(recorded)
		in, err := ln.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", n.Addr())
		if err != nil {
			return
		}
		go func() { _, _ = io.Copy(in, out); _ = in.Close() }()
		var said []byte
		buf := make([]byte, 4096)
		for {
			k, err := in.Read(buf)
			said = append(said, buf[:k]...)
			_, _ = out.Write(buf[:k])
			if err != nil {
				_ = out.Close()
				recorded <- said
				return
			}
		}
	}()
	d := replicaTwo()
	d.secret = []byte("swordfish")
	s, err := d.open(t.Context(), ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n.awaitUp(t, 2)
	_ = s.nc.Close()
	n.await(t, "the honest one down", func() bool { return len(n.downs[2]) == 1 })
	said := <-recorded
	nc, err := net.Dial("tcp", n.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nc.Close() }()
	if _, err := nc.Write(said); err != nil {
		t.Fatal(err)
	}
	in := &inbox{src: nc, max: maxHandshake}
	if _, err := expect(in, frameChallenge); err != nil {
		t.Fatal(err)
	}
	var refused *HandshakeError
	if _, err := expect(in, frameWelcome); !errors.As(err, &refused) || refused.Code != CodeUnauthenticated {
		t.Fatalf("answer to a recorded handshake: %v", err)
	}
	if ups := seen(n.recorder, func() int { return n.ups[2] }); ups != 1 {
		t.Errorf("replica 2 came up %d times", ups)
	}
}

func TestStrangersAreTurnedAway(t *testing.T) {
	patient := open(t, 1, nil)
	hasty := open(t, 1, func(o *Options) { o.HandshakeTimeout = 200 * time.Millisecond })
	for name, tt := range map[string]struct {
		say  string
		code Code // 0: the connection just ends
	}{
		"another protocol":    {"GET / HTTP/1.1\r\n\r\n", CodeMalformed},
		"another version":     {"weirkv\xff\x00", CodeVersion},
		"a frame too large":   {"weirkv\x01\x00\xff\xff\xff\x7f\x00\x00\x00\x00", CodeMalformed},
		"an empty frame":      {"weirkv\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00", CodeMalformed},
		"a wrong checksum":    {"weirkv\x01\x00\x02\x00\x00\x00\x00\x00\x00\x00\x03\x00", CodeMalformed},
		"half a preface":      {"weir", 0},
		"nothing":             {"", 0},
		"half a frame":        {"weirkv\x01\x00\x09\x00\x00\x00", 0},
		"the wrong frame":     {"weirkv\x01\x00" + framed(framePing, "12345678"), CodeMalformed},
		"an empty hello":      {"weirkv\x01\x00" + framed(frameHello, ""), CodeMalformed},
		"a refusal instead":   {"weirkv\x01\x00" + framed(frameRefusal, "\x01\x00"), 0},
		"a malformed refusal": {"weirkv\x01\x00" + framed(frameRefusal, "\x01"), CodeMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			n := patient
			if tt.code == 0 { // and half of them by the timeout
				n = hasty
			}
			nc, err := net.Dial("tcp", n.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = nc.Close() }()
			if _, err := nc.Write([]byte(tt.say)); err != nil {
				t.Fatal(err)
			}
			_, err = expect(&inbox{src: nc, max: maxHandshake}, frameChallenge)
			var refused *HandshakeError
			switch is := errors.As(err, &refused); {
			case err == nil:
				t.Error("the stranger was challenged")
			case is != (tt.code != 0) || is && refused.Code != tt.code:
				t.Errorf("answer: %v, want code %v", err, tt.code)
			}
		})
	}
}

func framed(kind byte, body string) string {
	var f frames
	f.control(kind, []byte(body))
	checksum(f.buf)
	return string(f.buf)
}

func TestDialEndsWithItsContext(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // connects, never answers
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(10*time.Millisecond, func() { cancel(enough) })
	if _, err := Dial(ctx, ln.Addr().String(), ClientOptions{Receive: func([]wire.Message) {}}); !errors.Is(err, enough) {
		t.Errorf("error = %v", err)
	}
	begin := time.Now()
	_, err = Dial(t.Context(), ln.Addr().String(), ClientOptions{
		HandshakeTimeout: 20 * time.Millisecond, Receive: func([]wire.Message) {},
	})
	// On a busy machine the connection alone may take that long.
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() || time.Since(begin) < 20*time.Millisecond {
		t.Errorf("error = %v after %v", err, time.Since(begin))
	}
}
