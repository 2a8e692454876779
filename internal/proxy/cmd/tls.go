//go:build linux

package proxycmd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/weirdb/weir/internal/proxy/ldap"
)

// tlsFiles names the files of weir's own certificate and of the authorities
// that sign those of clients.
type tlsFiles struct{ cert, key, ca string }

// load reads the files; nil without a certificate.
func (f tlsFiles) load() (*tls.Config, error) {
	if (f.cert == "") != (f.key == "") {
		return nil, errors.New("--client-tls-cert and --client-tls-key go together: one is missing")
	}
	if f.cert == "" {
		if f.ca != "" {
			return nil, errors.New("--client-tls-ca needs --client-tls-cert and --client-tls-key")
		}
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("--client-tls-cert: load certificate: %w", err)
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if f.ca != "" {
		pem, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, fmt.Errorf("--client-tls-ca: %w", err)
		}
		cfg.ClientCAs = x509.NewCertPool()
		if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--client-tls-ca: %s holds no certificate in PEM", f.ca)
		}
	}
	return cfg, nil
}

// ldapSource is what the options say of the LDAP server.
type ldapSource struct {
	options, ca string
	timeout     time.Duration
	// source is where options were found, "" if they were not.
	source string
	// visible: the password of the search is on the command line, for all to see.
	visible bool
}

// directory returns the LDAP server; nil where none is given.
func (l *ldapSource) directory() (*ldap.Directory, error) {
	if l.options == "" {
		return nil, nil
	}
	o, err := ldap.Parse(l.options)
	if err != nil {
		return nil, fmt.Errorf("--ldap: %w", err)
	}
	l.visible = l.source == "--ldap" && o.BindPassword != ""
	d, err := ldap.New(o, l.ca, l.timeout)
	if err != nil {
		return nil, fmt.Errorf("--ldap-ca: %w", err)
	}
	return d, nil
}
