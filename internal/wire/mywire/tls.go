package mywire

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"
)

// TLSMode is one of the mysql client's ssl-mode names. What it demands of
// clients is said at AcceptConfig.TLSMode, what it demands of servers at
// ConnectConfig.TLSMode.
type TLSMode string

// The TLS modes, weakest first.
const (
	TLSDisabled       TLSMode = "DISABLED"
	TLSPreferred      TLSMode = "PREFERRED"
	TLSRequired       TLSMode = "REQUIRED"
	TLSVerifyCA       TLSMode = "VERIFY_CA"
	TLSVerifyIdentity TLSMode = "VERIFY_IDENTITY"
)

// ParseTLSMode reads the name of a TLS mode, in upper or lower case. It takes
// the names of PostgreSQL's modes too, so that one configuration can speak of both.
func ParseTLSMode(s string) (TLSMode, error) {
	switch m := TLSMode(strings.ReplaceAll(strings.ToUpper(s), "-", "_")); m {
	case TLSDisabled, TLSPreferred, TLSRequired, TLSVerifyCA, TLSVerifyIdentity:
		return m, nil
	case "DISABLE":
		return TLSDisabled, nil
	case "ALLOW", "PREFER":
		return TLSPreferred, nil
	case "REQUIRE":
		return TLSRequired, nil
	case "VERIFY_FULL":
		return TLSVerifyIdentity, nil
	}
	return "", fmt.Errorf("TLS mode %q: want DISABLED, PREFERRED, REQUIRED, VERIFY_CA or VERIFY_IDENTITY", s)
}

func (m TLSMode) demanded() bool { return m == TLSRequired || m.verifies() }
func (m TLSMode) verifies() bool { return m == TLSVerifyCA || m == TLSVerifyIdentity }

// clientConfig derives the TLS config of one connection to host. Only
// VERIFY_IDENTITY has crypto/tls check the name; VERIFY_CA checks the chain
// alone; the other modes take any certificate, as the mysql client does.
func clientConfig(base *tls.Config, mode TLSMode, host string) *tls.Config {
	c := base.Clone()
	if c == nil {
		c = &tls.Config{}
	}
	if c.ServerName == "" {
		c.ServerName = host
	}
	c.InsecureSkipVerify = mode != TLSVerifyIdentity
	if mode != TLSVerifyCA {
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

// serverConfig derives from base the config with which weir receives clients.
// One that base comes up with for a client has to demand the same.
func serverConfig(base *tls.Config, mode TLSMode) *tls.Config {
	c := base.Clone()
	if base.GetConfigForClient != nil {
		c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			other, err := base.GetConfigForClient(hello)
			if other == nil || err != nil {
				return nil, err
			}
			return serverConfig(other, mode), nil
		}
	}
	if mode.verifies() {
		c.ClientAuth = tls.RequireAndVerifyClientCert
	} else if c.ClientCAs != nil && c.ClientAuth == tls.NoClientCert {
		c.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return c
}

// certName returns the common name of the client certificate if it was shown
// and verified, else "".
func certName(state *tls.ConnectionState) string {
	if state == nil || len(state.VerifiedChains) == 0 {
		return ""
	}
	return state.PeerCertificates[0].Subject.CommonName
}
