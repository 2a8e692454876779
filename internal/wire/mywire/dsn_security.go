package mywire

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// security sets TLS and the server's RSA key.
func (d *dsnParser) security() error {
	if err := d.serverKey(); err != nil {
		return err
	}
	mode, err := d.tlsMode()
	if err != nil {
		return err
	}
	d.cfg.TLSMode = mode
	if mode == TLSDisabled || d.cfg.Network == "unix" {
		return nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	switch v := d.set["tlsversion"]; v {
	case "", "TLSv1.2", "TLSv1.2,TLSv1.3":
	case "TLSv1.3":
		c.MinVersion = tls.VersionTLS13
	default:
		return fmt.Errorf("tls-version %q: want TLSv1.2 or TLSv1.3", v)
	}
	if path := d.set["sslca"]; path != "" {
		pem, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read ssl-ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("ssl-ca %s holds no PEM certificate", path)
		}
	}
	switch cert, key := d.set["sslcert"], d.set["sslkey"]; {
	case cert == "" && key == "":
	case cert == "" || key == "":
		return errors.New("ssl-cert and ssl-key go together")
	default:
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return fmt.Errorf("load ssl-cert and ssl-key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	d.cfg.TLSConfig = c
	return nil
}

// tlsMode returns the TLS mode from the different options of clients. If several are given, the
// strongest applies.
func (d *dsnParser) tlsMode() (TLSMode, error) {
	if v := d.set["sslmode"]; v != "" {
		return ParseTLSMode(v)
	}
	switch v := d.set["tls"]; v {
	case "":
	case "true", "1":
		return TLSVerifyIdentity, nil
	case "false", "0":
		return TLSDisabled, nil
	case "skip-verify":
		return TLSRequired, nil
	case "preferred":
		return TLSPreferred, nil
	default:
		return "", fmt.Errorf("tls %q: want true, false, skip-verify or preferred", v)
	}
	verify, err := d.flag("sslverifyservercert")
	if err != nil {
		return "", err
	}
	demand, err := d.flag("ssl")
	switch {
	case err != nil:
		return "", err
	case verify:
		return TLSVerifyIdentity, nil
	case d.set["sslca"] != "":
		return TLSVerifyCA, nil // as in the mysql client
	case demand:
		return TLSRequired, nil
	case d.set["ssl"] != "":
		return TLSDisabled, nil
	}
	return TLSPreferred, nil
}

func (d *dsnParser) serverKey() error {
	path := d.set["serverpublickeypath"]
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read server-public-key-path: %w", err)
	}
	if d.cfg.ServerKey, err = parseRSAKey(text); err != nil {
		return fmt.Errorf("server-public-key-path: %w", err)
	}
	return nil
}
