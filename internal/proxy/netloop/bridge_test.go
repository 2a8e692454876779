package netloop

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/testkit"
)

// tlsPair returns both ends of a TLS connection over TCP.
func tlsPair(t *testing.T) (server, client *tls.Conn) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	raw, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	got, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	server = tls.Server(got, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	client = tls.Client(raw, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // both ends are this test
	t.Cleanup(func() { _ = client.NetConn().Close(); _ = server.NetConn().Close() })
	shaken := make(chan error, 1)
	go func() { shaken <- client.HandshakeContext(t.Context()) }()
	if err := server.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-shaken; err != nil {
		t.Fatal(err)
	}
	return server, client
}

// fill writes to a bridge until no more can be written, and returns how much that was.
// The peer does not read.
func fill(t *testing.T, fd int) (sent int) {
	t.Helper()
	chunk := bytes.Repeat([]byte("weir"), 16<<10)
	for stuck := 0; stuck < 100; { // the kernel enlarges its buffers by and by
		n, err := unix.Write(fd, chunk)
		if err != nil {
			stuck++
			time.Sleep(time.Millisecond) // the bridge's goroutine may have something left to pass on
			continue
		}
		sent += n
		stuck = 0
	}
	return sent
}

func ended(background *sync.WaitGroup) func() bool {
	done := make(chan struct{})
	go func() { background.Wait(); close(done) }()
	return func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}

// TestBridgeOfAPeerThatDoesNotRead: it ends when the loop has closed its side, though a
// write to the peer never ends, and when there are no loops any more.
func TestBridgeOfAPeerThatDoesNotRead(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(fd int, stop func()){
		"the loop closes": func(fd int, _ func()) { _ = unix.Close(fd) },
		"weir ends":       func(_ int, stop func()) { stop() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, _ := tlsPair(t)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var background sync.WaitGroup
			fd, err := Detach(ctx, server, &background)
			if err != nil {
				t.Fatal(err)
			}
			fill(t, fd)
			end(fd, stop)
			testkit.Eventually(t, "the bridge ends", ended(&background))
			if name == "weir ends" {
				_ = unix.Close(fd)
			}
		})
	}
}

// TestBridgePassesOnWhatIsLeft: what was written before the loop closed its side reaches
// a peer that reads late.
func TestBridgePassesOnWhatIsLeft(t *testing.T) {
	t.Parallel()
	server, client := tlsPair(t)
	var background sync.WaitGroup
	fd, err := Detach(t.Context(), server, &background)
	if err != nil {
		t.Fatal(err)
	}
	sent := fill(t, fd)
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
	got, err := io.Copy(io.Discard, client)
	if err != nil || int(got) != sent {
		t.Errorf("the peer has read %d bytes of %d: %v", got, sent, err)
	}
	testkit.Eventually(t, "the bridge ends", ended(&background))
}

// TestBridgeHasNoDeadline: what bounded the login does not end the connection.
func TestBridgeHasNoDeadline(t *testing.T) {
	t.Parallel()
	server, client := tlsPair(t)
	if err := server.SetDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	var background sync.WaitGroup
	fd, err := Detach(t.Context(), server, &background)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(fd, []byte("weir")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(client); err != nil || string(got) != "weir" {
		t.Errorf("the peer has read %q: %v", got, err)
	}
	testkit.Eventually(t, "the bridge ends", ended(&background))
}
