package peer

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// Certificates are a side's certificate with its key, and the authority of the
// other side's certificates. The files are checked again at each handshake,
// so that new ones take effect without a restart; open connections
// stay. Safe for concurrent use.
type Certificates struct {
	cert, key, ca string

	// ServerName is the name that a dialed side's certificate must have.
	// Default: the host of the dialed address. Set it before use.
	ServerName string

	mu     sync.Mutex
	stamp  [3]fileStamp // of the files from which loaded came
	loaded loadedFiles
}

// fileStamp identifies a version of a file.
type fileStamp struct {
	modified time.Time
	size     int64
}

type loadedFiles struct {
	pair  tls.Certificate
	roots *x509.CertPool
}

// LoadCertificates reads PEM files: a certificate (with its chain), its private
// key, and the certificates of the authority.
func LoadCertificates(cert, key, ca string) (*Certificates, error) {
	c := &Certificates{cert: cert, key: key, ca: ca}
	if _, err := c.current(); err != nil {
		return nil, err
	}
	return c, nil
}

// current returns the contents of the files. If they cannot be read or do not
// belong together, as in the middle of a replacement, it returns what was loaded
// before.
func (c *Certificates) current() (loadedFiles, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stamp, err := c.stat()
	if err == nil && stamp == c.stamp {
		return c.loaded, nil
	}
	var fresh loadedFiles
	if err == nil {
		fresh, err = c.load()
	}
	if err == nil {
		c.stamp, c.loaded = stamp, fresh
	} else if c.loaded.roots == nil {
		return loadedFiles{}, err
	}
	return c.loaded, nil
}

func (c *Certificates) stat() (stamp [3]fileStamp, err error) {
	for i, name := range []string{c.cert, c.key, c.ca} {
		info, err := os.Stat(name)
		if err != nil {
			return stamp, fmt.Errorf("look at certificate: %w", err)
		}
		stamp[i] = fileStamp{info.ModTime(), info.Size()}
	}
	return stamp, nil
}

func (c *Certificates) load() (loadedFiles, error) {
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return loadedFiles{}, fmt.Errorf("load certificate: %w", err)
	}
	pem, err := os.ReadFile(c.ca)
	if err != nil {
		return loadedFiles{}, fmt.Errorf("load authority: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return loadedFiles{}, fmt.Errorf("load authority %s: %w", c.ca, errors.New("no certificate in it"))
	}
	return loadedFiles{pair, roots}, nil
}

// server is the configuration for accepting connections.
func (c *Certificates) server() *tls.Config {
	return &tls.Config{
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			now, err := c.current()
			if err != nil {
				return nil, err
			}
			return &tls.Config{
				MinVersion:             tls.VersionTLS13,
				Certificates:           []tls.Certificate{now.pair},
				ClientAuth:             tls.RequireAndVerifyClientCert,
				ClientCAs:              now.roots,
				SessionTicketsDisabled: true, // each connection shows its certificate
				// A frame should need few system calls from the start.
				DynamicRecordSizingDisabled: true,
			}, nil
		},
	}
}

// client is the configuration for dialing host.
func (c *Certificates) client(host string) (*tls.Config, error) {
	now, err := c.current()
	if err != nil {
		return nil, err
	}
	if c.ServerName != "" {
		host = c.ServerName
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{now.pair},
		RootCAs:      now.roots,
		ServerName:   host,

		DynamicRecordSizingDisabled: true,
	}, nil
}
