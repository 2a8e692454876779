package mysql

import (
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"fmt"
	"net"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// openPool opens a pool of go-sql-driver connections.
func openPool(wire mywire.ConnectConfig) (*sql.DB, error) {
	cfg := driver.NewConfig()
	cfg.User, cfg.Passwd, cfg.DBName = wire.User, wire.Password, wire.Database
	cfg.Net, cfg.Addr = wire.Network, wire.Address
	cfg.Timeout = wire.Timeout
	cfg.InterpolateParams = true     // one round trip a statement, not three
	cfg.MaxAllowedPacket = 1 << 30   // the server's own limit holds
	cfg.Logger = &driver.NopLogger{} // every error is returned as well
	dialer := net.Dialer{Timeout: wire.Timeout, KeepAliveConfig: keepAlive}
	cfg.DialFunc = dialer.DialContext
	if err := secure(cfg, wire); err != nil {
		return nil, err
	}
	connector, err := driver.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("configure client: %w", err)
	}
	db := sql.OpenDB(connector)
	db.SetConnMaxIdleTime(time.Minute)
	return db, nil
}

// keepAlive detects within seconds that a server's machine is gone, also while waiting for an answer.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3}

// serverKey returns the name under which the driver registers a server's RSA key.
func serverKey(wire mywire.ConnectConfig) string { return "weir:" + wire.Network + ":" + wire.Address }

// secure sets the TLS options of the DSN.
func secure(cfg *driver.Config, wire mywire.ConnectConfig) error {
	if wire.ServerKey != nil {
		cfg.ServerPubKey = serverKey(wire)
		driver.RegisterServerPubKey(cfg.ServerPubKey, wire.ServerKey)
	}
	if wire.TLSMode == mywire.TLSDisabled || wire.Network == "unix" {
		return nil
	}
	t := wire.TLSConfig.Clone()
	if t == nil {
		t = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	host, _, err := net.SplitHostPort(wire.Address)
	if err != nil {
		return fmt.Errorf("server address: %w", err)
	}
	t.ServerName = host
	switch wire.TLSMode {
	case mywire.TLSVerifyIdentity:
	case mywire.TLSVerifyCA:
		// VerifyConnection verifies the chain but not the name.
		t.InsecureSkipVerify = true
		t.VerifyConnection = func(state tls.ConnectionState) error { return verifyChain(state, t.RootCAs) }
	case mywire.TLSRequired:
		t.InsecureSkipVerify = true
	default:
		t.InsecureSkipVerify = true
		cfg.AllowFallbackToPlaintext = true
	}
	cfg.TLS = t
	return nil
}

func verifyChain(state tls.ConnectionState, roots *x509.CertPool) error {
	opts := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
	for _, cert := range state.PeerCertificates[1:] {
		opts.Intermediates.AddCert(cert)
	}
	if _, err := state.PeerCertificates[0].Verify(opts); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
	}
	return nil
}
