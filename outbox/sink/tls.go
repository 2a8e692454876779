package sink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// TLS is the configuration of an encrypted connection. The zero value trusts the system's
// authorities and has no client certificate.
type TLS struct {
	CAFile     string // trusted instead of the system's authorities. Default: the system's
	CertFile   string // shown to the broker, with KeyFile. Default: none
	KeyFile    string
	ServerName string // to be found in the broker's certificate. Default: the host
}

// TLS takes the parameters ca-file, cert-file, key-file and server-name.
func (p *Params) TLS() TLS {
	return TLS{
		CAFile:   p.Text("ca-file", ""),
		CertFile: p.Text("cert-file", ""), KeyFile: p.Text("key-file", ""),
		ServerName: p.Text("server-name", ""),
	}
}

// IsZero reports whether no field is set.
func (t TLS) IsZero() bool { return t == TLS{} }

// Config reads the files and returns the configuration for crypto/tls.
func (t TLS) Config() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read ca-file: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read ca-file: %s holds no certificate", t.CAFile)
		}
	}
	if (t.CertFile == "") != (t.KeyFile == "") {
		return nil, fmt.Errorf("cert-file and key-file: want both or none")
	}
	if t.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read cert-file and key-file: %w", err)
		}
		cfg.Certificates = []tls.Certificate{cert}
	}
	return cfg, nil
}

// DialTLS connects and performs the handshake within the timeout. Its errors say whether
// the handshake failed, and what the reason may be if the server did not answer.
func DialTLS(ctx context.Context, timeout time.Duration, cfg *tls.Config, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if cfg.ServerName == "" {
		cfg = cfg.Clone()
		if cfg.ServerName, _, err = net.SplitHostPort(address); err != nil {
			return nil, errors.Join(err, raw.Close())
		}
	}
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close() // the error that counts is the other one
		var plain tls.RecordHeaderError
		if errors.As(err, &plain) || errors.Is(err, io.EOF) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, fmt.Errorf("TLS handshake with %s: %w (does the broker speak TLS on this port?)", address, err)
		}
		return nil, fmt.Errorf("TLS handshake with %s: %w", address, err)
	}
	return conn, nil
}
