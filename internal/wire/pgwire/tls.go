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

// TLSMode is the name of a libpq sslmode. AcceptConfig.TLSMode says what it requires of
// clients, ConnectConfig.TLSMode what it requires of servers.
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

// ParseTLSMode returns the TLS mode with the given name.
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

// tlsTransport is the connection under the TLS connections of Accept. It returns the byte that
// was read to recognize TLS once more, and it remembers the certificate that the server
// presented, which channel binding needs and crypto/tls does not report.
type tlsTransport struct {
	net.Conn
	prefix []byte
	leaf   []byte // DER of the server's certificate, set during the handshake
}

// NetConn returns the underlying connection, like tls.Conn.NetConn.
func (t *tlsTransport) NetConn() net.Conn { return t.Conn }

func (t *tlsTransport) Read(p []byte) (int, error) {
	if len(t.prefix) > 0 {
		n := copy(p, t.prefix)
		t.prefix = t.prefix[n:]
		return n, nil
	}
	return t.Conn.Read(p)
}

// serverConfig returns the config of one handshake, derived from base.
func (t *tlsTransport) serverConfig(base *tls.Config, mode TLSMode) *tls.Config {
	c := base.Clone()
	c.NextProtos = []string{alpn}
	c.SessionTicketsDisabled = true // as PostgreSQL, whose clients do not resume sessions
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
	c.Certificates = nil // so that crypto/tls always calls GetCertificate
	c.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, err := chooseCertificate(base, hello)
		if err == nil && len(cert.Certificate) > 0 {
			t.leaf = cert.Certificate[0]
		}
		return cert, err
	}
	return c
}

// chooseCertificate does what crypto/tls does with Certificates and GetCertificate.
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

// serverEndpoint returns the channel binding data of a connection that Accept returned, or nil.
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

// clientEndpoint returns the channel binding data of a connection that Connect made, or nil.
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

// endpointHash is tls-server-end-point of RFC 5929 section 4.1: the hash of the certificate
// with the hash function of its signature, but SHA-256 in place of MD5 and SHA-1. It is
// undefined, and nil, for signatures without a hash function of their own (Ed25519).
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

// clientConfig returns the TLS config of one connection to host. Only verify-full checks the
// name; verify-ca checks only the chain; the other modes accept any certificate, as libpq does.
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
