package netwire

import (
	"crypto/tls"
	"crypto/x509"
)

// A Check is what a client checks of a server's certificate.
type Check int

// The checks, weakest first.
const (
	CheckNothing Check = iota
	CheckChain         // up to one of the roots
	CheckName          // and that it is the host's
)

// ClientTLS derives the TLS config of one connection to host; base may be nil.
// CheckName is done by crypto/tls itself, CheckChain by VerifyConnection.
func ClientTLS(base *tls.Config, check Check, host string) *tls.Config {
	c := base.Clone()
	if c == nil {
		c = &tls.Config{}
	}
	if c.ServerName == "" {
		c.ServerName = host
	}
	c.InsecureSkipVerify = check != CheckName
	if check != CheckChain {
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
		if _, err := state.PeerCertificates[0].Verify(opts); err != nil {
			return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
		}
		if next != nil {
			return next(state)
		}
		return nil
	}
	return c
}

// CertName returns the common name of the client certificate if it was shown
// and verified, else "".
func CertName(state *tls.ConnectionState) string {
	if state == nil || len(state.VerifiedChains) == 0 {
		return ""
	}
	return state.PeerCertificates[0].Subject.CommonName
}
