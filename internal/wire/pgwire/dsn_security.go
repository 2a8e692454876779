package pgwire

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// security sets TLS and channel binding. Files that the DSN does not name are looked for in
// ~/.postgresql, as in libpq.
func (d *dsnParser) security(cfg *ConnectConfig, host string) error {
	cfg.ChannelBinding = d.get("channel_binding")
	switch v := d.get("sslnegotiation"); v {
	case "", "postgres":
	case "direct":
		cfg.TLSDirect = true
	default:
		return fmt.Errorf("sslnegotiation %q: want postgres or direct", v)
	}
	root := d.get("sslrootcert")
	mode := d.get("sslmode")
	if root == "system" {
		// The public authorities sign certificates for every host, so the name must be checked.
		mode = cmp.Or(mode, string(TLSVerifyFull))
		if mode != string(TLSVerifyFull) {
			return fmt.Errorf("sslrootcert=system needs sslmode=verify-full, not %s", mode)
		}
	}
	var err error
	if cfg.TLSMode, err = ParseTLSMode(cmp.Or(mode, string(TLSPrefer))); err != nil {
		return err
	}
	if cfg.TLSMode == TLSDisable || cfg.Network == "unix" {
		return nil
	}
	c := &tls.Config{ServerName: host}
	switch v := d.get("ssl_min_protocol_version"); v {
	case "", "TLSv1.2":
		c.MinVersion = tls.VersionTLS12
	case "TLSv1.3":
		c.MinVersion = tls.VersionTLS13
	default:
		return fmt.Errorf("ssl_min_protocol_version %q: want TLSv1.2 or TLSv1.3", v)
	}
	if root != "system" {
		if err := d.authorities(cfg, c, root); err != nil {
			return err
		}
	}
	if err := d.clientCertificate(c); err != nil {
		return err
	}
	cfg.TLSConfig = c
	return nil
}

// authorities loads the root certificates. If there are any, require means verify-ca, as in
// libpq, for compatibility.
func (d *dsnParser) authorities(cfg *ConnectConfig, c *tls.Config, path string) error {
	named := path != ""
	if !named {
		path = d.homeFile(".postgresql", "root.crt")
	}
	pem, err := os.ReadFile(path)
	if path == "" || errors.Is(err, fs.ErrNotExist) && !named {
		if cfg.TLSMode.verifies() {
			return fmt.Errorf("sslmode=%s needs root certificates: set sslrootcert to a file or to system", cfg.TLSMode)
		}
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) && !cfg.TLSMode.verifies() {
		return nil // named, missing, and not needed: libpq ignores it, too
	}
	if err != nil {
		return fmt.Errorf("read sslrootcert: %w", err)
	}
	c.RootCAs = x509.NewCertPool()
	if !c.RootCAs.AppendCertsFromPEM(pem) {
		return fmt.Errorf("sslrootcert %s holds no PEM certificate", path)
	}
	if cfg.TLSMode == TLSRequire {
		cfg.TLSMode = TLSVerifyCA
	}
	return nil
}

func (d *dsnParser) clientCertificate(c *tls.Config) error {
	cert, key := d.get("sslcert"), d.get("sslkey")
	named := cert != "" || key != ""
	cert = cmp.Or(cert, d.homeFile(".postgresql", "postgresql.crt"))
	key = cmp.Or(key, d.homeFile(".postgresql", "postgresql.key"))
	if _, err := os.Stat(cert); !named && err != nil {
		return nil
	}
	info, err := os.Stat(key)
	if err != nil {
		return fmt.Errorf("read sslkey: %w", err)
	}
	if loose(info, 0o640) {
		return fmt.Errorf("sslkey %s is open to others: chmod 600 it", key)
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("load sslcert and sslkey: %w", err)
	}
	c.Certificates = []tls.Certificate{pair}
	return nil
}

// loose reports whether a file is open to more than the allowed bits.
func loose(info fs.FileInfo, allowed fs.FileMode) bool {
	return runtime.GOOS != "windows" && info.Mode().IsRegular() && info.Mode().Perm()&^allowed&0o077 != 0
}

// homeFile returns a path in the home directory, or "" if that is unknown.
func (d *dsnParser) homeFile(elem ...string) string {
	home := d.getenv("HOME")
	if home == "" {
		return ""
	}
	return filepath.Join(append([]string{home}, elem...)...)
}

// filedPassword looks up the password in the password file. If the file is readable by others
// and has the password, it returns an error; libpq ignores such a file.
func (d *dsnParser) filedPassword(host, port string, cfg ConnectConfig) (string, error) {
	path := cmp.Or(d.get("passfile"), d.homeFile(".pgpass"))
	info, err := os.Stat(path)
	if path == "" || err != nil || !info.Mode().IsRegular() {
		return "", nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read password file: %w", err)
	}
	if cfg.Network == "unix" && (host == "/var/run/postgresql" || host == "/tmp") {
		host = "localhost" // libpq's name for a socket in the default directory
	}
	password, ok := searchPasswords(string(text), host, port, cfg.Database, cfg.User)
	if ok && loose(info, 0o600) {
		return "", fmt.Errorf("password file %s is open to others: chmod 600 it", path)
	}
	return password, nil
}

// searchPasswords returns the password of the first line
// "host:port:database:user:password" that matches; "*" matches anything, and a
// backslash takes the next character literally.
func searchPasswords(text, host, port, database, user string) (password string, ok bool) {
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if strings.HasPrefix(line, "#") {
			continue
		}
		matches := true
		for _, want := range []string{host, port, database, user} {
			raw, field, rest, found := passField(line)
			matches = matches && found && (raw == "*" || field == want)
			line = rest
		}
		if matches {
			_, password, _, _ = passField(line)
			return password, true
		}
	}
	return "", false
}

// passField splits line at its first colon that no backslash precedes. raw is
// the field as written, field the same with backslashes resolved.
func passField(line string) (raw, field, rest string, found bool) {
	var b strings.Builder
	for i := 0; i < len(line); i++ {
		switch {
		case line[i] == '\\' && i+1 < len(line):
			i++
			b.WriteByte(line[i])
		case line[i] == ':':
			return line[:i], b.String(), line[i+1:], true
		default:
			b.WriteByte(line[i])
		}
	}
	return line, b.String(), "", false
}
