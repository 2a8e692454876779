package pgwire

import (
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"net"
	"testing"
)

func TestEndpointHash(t *testing.T) {
	raw := []byte("certificate")
	s256, s384, s512 := sha256.Sum256(raw), sha512.Sum384(raw), sha512.Sum512(raw)
	for _, tt := range []struct {
		signature x509.SignatureAlgorithm
		want      []byte
	}{
		{x509.MD5WithRSA, s256[:]},  // RFC 5929: SHA-256 in place of MD5
		{x509.SHA1WithRSA, s256[:]}, // and of SHA-1
		{x509.ECDSAWithSHA256, s256[:]},
		{x509.SHA256WithRSAPSS, s256[:]},
		{x509.ECDSAWithSHA384, s384[:]},
		{x509.SHA512WithRSA, s512[:]},
		{x509.PureEd25519, nil}, // undefined
	} {
		got := endpointHash(&x509.Certificate{Raw: raw, SignatureAlgorithm: tt.signature})
		if hex.EncodeToString(got) != hex.EncodeToString(tt.want) {
			t.Errorf("%v: %x, want %x", tt.signature, got, tt.want)
		}
	}
}

// A connection that Accept did not make has no channel binding to offer, and
// a connection without a certificate none to use.
func TestNoEndpointWithoutCertificate(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	for name, conn := range map[string]net.Conn{"plain": a, "foreign TLS": tls.Server(b, &tls.Config{})} {
		if got := serverEndpoint(conn); got != nil {
			t.Errorf("%s: server's data %x", name, got)
		}
		if got := clientEndpoint(conn); got != nil {
			t.Errorf("%s: client's data %x", name, got)
		}
	}
}

// The socket stays within reach of anyone who needs its descriptor.
func TestNetConnReachesTheSocket(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	conn := tls.Server(&tlsTransport{Conn: a}, &tls.Config{})
	under, ok := conn.NetConn().(interface{ NetConn() net.Conn })
	if !ok || under.NetConn() != a {
		t.Errorf("below TLS: %T", conn.NetConn())
	}
}

func TestModeNames(t *testing.T) {
	for _, name := range []string{"disable", "allow", "prefer", "require", "verify-ca", "verify-full"} {
		if m, err := ParseTLSMode(name); err != nil || string(m) != name {
			t.Errorf("ParseTLSMode(%q) = %q, %v", name, m, err)
		}
	}
	for _, name := range []string{"trust", "password", "md5", "scram-sha-256", "cert"} {
		if m, err := ParseAuthMethod(name); err != nil || string(m) != name {
			t.Errorf("ParseAuthMethod(%q) = %q, %v", name, m, err)
		}
	}
	for _, name := range []string{"", "Require", "gss"} {
		if m, err := ParseTLSMode(name); err == nil {
			t.Errorf("ParseTLSMode(%q) = %q", name, m)
		}
		if m, err := ParseAuthMethod(name); err == nil {
			t.Errorf("ParseAuthMethod(%q) = %q", name, m)
		}
	}
}
