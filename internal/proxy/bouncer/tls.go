package bouncer

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/weirdb/weir/internal/proxy/pgbouncer"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A tlsSide has the TLS settings for clients, or for servers.
type tlsSide struct {
	mode   pgwire.TLSMode
	config *tls.Config // nil: there is none
}

// loadTLS reads the files of one side: client or server.
func loadTLS(cfg *pgbouncer.Config, side string) (t tlsSide, err error) {
	get := func(name string) string { return cfg.Text(side + "_tls_" + name) }
	if t.mode, err = pgwire.ParseTLSMode(get("sslmode")); err != nil {
		return t, err
	}
	if t.mode == pgwire.TLSDisable {
		return t, nil
	}
	versions := cfg.Protocols(side)
	c := &tls.Config{MinVersion: versions.Min, MaxVersion: versions.Max}
	if cert, key := get("cert_file"), get("key_file"); cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return t, tlsError(side+"_tls_cert_file", err)
		}
		c.Certificates = []tls.Certificate{pair}
	} else if side == "client" {
		return t, tlsError("client_tls_cert_file", errors.New("there is none, and client_tls_sslmode is "+string(t.mode)))
	}
	if ca := get("ca_file"); ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return t, tlsError(side+"_tls_ca_file", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return t, tlsError(side+"_tls_ca_file", errors.New("no certificate in PEM"))
		}
		c.RootCAs, c.ClientCAs = pool, pool
	}
	t.config = c
	return t, nil
}

func tlsError(setting string, err error) error {
	var path *os.PathError
	if errors.As(err, &path) && errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%s: No such file or directory", path.Path) // as the system says it in C
	}
	return &fileError{setting, &setupError{err}}
}

// setupError is the error of an unusable TLS configuration.
type setupError struct{ err error }

func (e *setupError) Error() string { return e.err.Error() }
func (e *setupError) Unwrap() error { return e.err }
