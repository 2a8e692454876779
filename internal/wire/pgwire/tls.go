package pgwire

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	"github.com/weirdb/weir/internal/wire/netwire"
)

// TLSMode is a libpq sslmode name. What it demands of clients is said at
// AcceptConfig.TLSMode, what it demands of servers at ConnectConfig.TLSMode.
type TLSMode string

// The TLS modes, weakest first.
const (
	TLSDisable    TLSMode = "disable"
	TLSAllow      TLSMode = "allow"
	TLSPrefer     TLSMode = "prefer"
	TLSRequire    TLSMode = "require"
	TLSVerifyCA   TLSMode = "verify-ca"
	TLSVerifyFull TLSMode = "verify-full"
)

// ParseTLSMode checks the name of a TLS mode.
func ParseTLSMode(s string) (TLSMode, error) {
	switch m := TLSMode(s); m {
	case TLSDisable, TLSAllow, TLSPrefer, TLSRequire, TLSVerifyCA, TLSVerifyFull:
		return m, nil
	}
	return "", fmt.Errorf("TLS mode %q: want disable, allow, prefer, require, verify-ca or verify-full", s)
}

func (m TLSMode) demanded() bool { return m == TLSRequire || m.verifies() }
func (m TLSMode) verifies() bool { return m == TLSVerifyCA || m == TLSVerifyFull }

// alpn is the protocol name registered for PostgreSQL over TLS.
const alpn = "postgresql"

// tlsTransport lies under the TLS connections of Accept. It gives back the byte
// that was read to recognise TLS, and it remembers the certificate that the
// server showed, which crypto/tls does not tell and channel binding needs.
type tlsTransport struct {
	net.Conn
	prefix []byte
	leaf   []byte // DER of the server's certificate, set during the handshake
}

// NetConn returns the connection below, like tls.Conn.NetConn.
func (t *tlsTransport) NetConn() net.Conn { return t.Conn }

func (t *tlsTransport) Read(p []byte) (int, error) {
	if len(t.prefix) > 0 {
		n := copy(p, t.prefix)
		t.prefix = t.prefix[n:]
		return n, nil
	}
	return t.Conn.Read(p)
}

// serverConfig derives from base the config of one handshake.
func (t *tlsTransport) serverConfig(base *tls.Config, mode TLSMode) *tls.Config {
	c := base.Clone()
	c.NextProtos = []string{alpn}
	c.SessionTicketsDisabled = true // as PostgreSQL: no client of it resumes
	if mode.verifies() {
		c.ClientAuth = tls.RequireAndVerifyClientCert
	} else if c.ClientCAs != nil && c.ClientAuth == tls.NoClientCert {
		c.ClientAuth = tls.VerifyClientCertIfGiven
	}
	if base.GetConfigForClient != nil {
		c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			other, err := base.GetConfigForClient(hello)
			if other == nil || err != nil {
				return nil, err
			}
			return t.serverConfig(other, mode), nil
		}
	}
	c.Certificates = nil // so that crypto/tls always asks
	c.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, err := chooseCertificate(base, hello)
		if err == nil && len(cert.Certificate) > 0 {
			t.leaf = cert.Certificate[0]
		}
		return cert, err
	}
	return c
}

// chooseCertificate does what crypto/tls does with Certificates and
// GetCertificate.
func chooseCertificate(c *tls.Config, hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c.GetCertificate != nil && (len(c.Certificates) == 0 || hello.ServerName != "") {
		if cert, err := c.GetCertificate(hello); cert != nil || err != nil {
			return cert, err
		}
	}
	for i := range c.Certificates {
		if hello.SupportsCertificate(&c.Certificates[i]) == nil {
			return &c.Certificates[i], nil
		}
	}
	if len(c.Certificates) == 0 {
		return nil, errors.New("no certificate configured")
	}
	return &c.Certificates[0], nil
}

// serverEndpoint returns the channel binding data of a connection that Accept
// returned, nil if it has none.
func serverEndpoint(conn net.Conn) []byte {
	c, ok := conn.(*tls.Conn)
	if !ok {
		return nil
	}
	t, ok := c.NetConn().(*tlsTransport)
	if !ok || t.leaf == nil {
		return nil
	}
	cert, err := x509.ParseCertificate(t.leaf)
	if err != nil {
		return nil
	}
	return endpointHash(cert)
}

// clientEndpoint returns the channel binding data of a connection that Connect
// made, nil if it has none.
func clientEndpoint(conn net.Conn) []byte {
	c, ok := conn.(*tls.Conn)
	if !ok {
		return nil
	}
	certs := c.ConnectionState().PeerCertificates
	if len(certs) == 0 {
		return nil
	}
	return endpointHash(certs[0])
}

// endpointHash is tls-server-end-point of RFC 5929 section 4.1: the hash of the
// certificate by the hash function of its signature, SHA-256 in place of MD5
// and SHA-1. Signatures without a hash function of their own (Ed25519) leave it
// undefined: nil.
func endpointHash(cert *x509.Certificate) []byte {
	var h crypto.Hash
	switch cert.SignatureAlgorithm {
	case x509.MD5WithRSA, x509.SHA1WithRSA, x509.ECDSAWithSHA1, x509.DSAWithSHA1,
		x509.SHA256WithRSA, x509.SHA256WithRSAPSS, x509.ECDSAWithSHA256, x509.DSAWithSHA256:
		h = crypto.SHA256
	case x509.SHA384WithRSA, x509.SHA384WithRSAPSS, x509.ECDSAWithSHA384:
		h = crypto.SHA384
	case x509.SHA512WithRSA, x509.SHA512WithRSAPSS, x509.ECDSAWithSHA512:
		h = crypto.SHA512
	default:
		return nil
	}
	sum := h.New()
	sum.Write(cert.Raw)
	return sum.Sum(nil)
}

// clientConfig derives the TLS config of one connection to host. Only verify-full
// checks the name; verify-ca checks the chain alone; the other modes take any
// certificate, as libpq does.
func clientConfig(base *tls.Config, mode TLSMode, host string) *tls.Config {
	check := netwire.CheckNothing
	switch mode {
	case TLSVerifyCA:
		check = netwire.CheckChain
	case TLSVerifyFull:
		check = netwire.CheckName
	}
	c := netwire.ClientTLS(base, check, host)
	c.NextProtos = []string{alpn}
	return c
}
