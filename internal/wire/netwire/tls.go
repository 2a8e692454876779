package netwire

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
)

// A Check says what a client checks of a server's certificate.
type Check int

// The checks, weakest first.
const (
	CheckNothing Check = iota
	CheckChain         // that the chain leads to one of the roots
	CheckName          // also the host name
)

// ClientTLS returns the TLS config of one connection to host, derived from base, which may be
// nil. VerifyConnection does the checks.
func ClientTLS(base *tls.Config, check Check, host string) *tls.Config {
	c := base.Clone()
	if c == nil {
		c = &tls.Config{}
	}
	if c.ServerName == "" {
		c.ServerName = host
	}
	c.InsecureSkipVerify = true // VerifyConnection checks
	if check == CheckNothing {
		return c
	}
	next := c.VerifyConnection
	c.VerifyConnection = func(state tls.ConnectionState) error {
		opts := x509.VerifyOptions{Roots: c.RootCAs, Intermediates: x509.NewCertPool()}
		if c.Time != nil {
			opts.CurrentTime = c.Time()
		}
		for _, cert := range state.PeerCertificates[1:] {
			opts.Intermediates.AddCert(cert)
		}
		leaf := state.PeerCertificates[0]
		if check == CheckName && (named(leaf) || !commonName(leaf, c.ServerName)) {
			opts.DNSName = c.ServerName
		}
		if _, err := leaf.Verify(opts); err != nil {
			return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
		}
		if next != nil {
			return next(state)
		}
		return nil
	}
	return c
}

// named reports whether a certificate has subject alternative names, so that its common name
// does not count.
func named(cert *x509.Certificate) bool {
	return len(cert.DNSNames)+len(cert.IPAddresses)+len(cert.URIs)+len(cert.EmailAddresses) > 0
}

// commonName reports whether a certificate is valid for a host by its common name. libpq and
// MySQL's clients accept that, and Go does not; older certificates have no other name.
func commonName(cert *x509.Certificate, host string) bool {
	name, host := strings.ToLower(cert.Subject.CommonName), strings.ToLower(strings.TrimSuffix(host, "."))
	if rest, ok := strings.CutPrefix(name, "*."); ok {
		_, domain, found := strings.Cut(host, ".")
		return found && domain == rest && strings.Contains(rest, ".") && net.ParseIP(host) == nil
	}
	return name != "" && name == host
}

// CertName returns the common name of the client certificate if one was presented and verified,
// or "".
func CertName(state *tls.ConnectionState) string {
	if state == nil || len(state.VerifiedChains) == 0 {
		return ""
	}
	return state.PeerCertificates[0].Subject.CommonName
}
