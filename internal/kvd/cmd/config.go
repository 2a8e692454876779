package kvcmd

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/kvd/resp"
)

// kvLoader reads the options of `weir kv serve`.
func kvLoader() *cli.Loader[kvConfig] {
	return &cli.Loader[kvConfig]{
		Options: kvOptions(), Groups: kvGroups, Prefix: "WEIR_KV_",
		FileHelp: "YAML file with any of these options; WEIR_KV_CONFIG names one too",
	}
}

// loadKV loads the configuration. Its errors are usage errors.
func loadKV(l *cli.Loader[kvConfig]) (c kvConfig, err error) {
	if _, err = l.Load(&c); err != nil {
		return c, err
	}
	return c, c.complete()
}

// complete reads the files named by options, and checks options that depend on each other.
func (c *kvConfig) complete() error {
	r := &c.replica
	r.Memory = c.durability == "memory"
	if err := c.trust(); err != nil {
		return err
	}
	if r.Redis == "" {
		for _, m := range r.Members {
			if m.ID == r.ID {
				r.Redis = m.Client
			}
		}
	}
	if r.Redis != "" && len(r.Front.Users) == 0 && !r.Insecure && !isLoopback(r.Redis) {
		return fmt.Errorf("--resp %s can be reached from other machines: give --resp-password-file, or permit it with --insecure", r.Redis)
	}
	if err := r.Validate(); err != nil {
		return err
	}
	// The replica refuses this as well, but only after it has created its directory.
	listen := r.Listen
	for _, m := range r.Members {
		if m.ID == r.ID {
			listen = cmp.Or(listen, m.Addr)
		}
	}
	if len(r.Secret) == 0 && r.TLS == nil && !r.Insecure && !isLoopback(listen) {
		return fmt.Errorf("%s can be reached from other machines: give --secret-file or --tls-cert, or permit it with --insecure", listen)
	}
	return nil
}

// trust reads secrets, passwords and certificates.
func (c *kvConfig) trust() (err error) {
	r := &c.replica
	if c.secretFile != "" {
		text, err := os.ReadFile(c.secretFile)
		if err != nil {
			return fmt.Errorf("--secret-file: %w", err)
		}
		if r.Secret = bytes.TrimSpace(text); len(r.Secret) < minSecret {
			return fmt.Errorf("--secret-file: %s has %d bytes, want at least %d, as from openssl rand -hex 32", c.secretFile, len(r.Secret), minSecret)
		}
	}
	if c.passwordFile != "" {
		if r.Front.Users, err = resp.ReadUsers(c.passwordFile); err != nil {
			return fmt.Errorf("--resp-password-file: %w", err)
		}
	}
	t := &c.tls
	switch {
	case (t.cert == "") != (t.key == ""):
		return errors.New("--tls-cert and --tls-key go together: one is missing")
	case t.cert == "" && (t.ca != "" || c.redisTLS):
		return errors.New("--tls-ca and --resp-tls need --tls-cert and --tls-key")
	case t.cert == "":
		return nil
	}
	if c.redisTLS {
		pair, err := tls.LoadX509KeyPair(t.cert, t.key)
		if err != nil {
			return fmt.Errorf("--tls-cert: load certificate: %w", err)
		}
		r.Front.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	if t.ca == "" {
		if c.redisTLS {
			return nil // for Redis clients only
		}
		return errors.New("--tls-cert needs --tls-ca: replicas and native clients have certificates on both sides")
	}
	if r.TLS, err = peer.LoadCertificates(t.cert, t.key, t.ca); err != nil {
		return fmt.Errorf("--tls-cert: %w", err)
	}
	return nil
}

// tlsFiles are the files of a certificate, its key and the authority of the others.
type tlsFiles struct{ cert, key, ca string }

// minSecret is the least length of the shared secret, in bytes.
const minSecret = 16

// isLoopback reports whether only this machine can reach an address.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// log returns the logger of the verb.
func (c *kvConfig) log(w io.Writer) *slog.Logger {
	return cli.NewLog(w, c.logFormat, c.logLevel).With("replica", strconv.FormatUint(c.replica.ID, 10))
}
