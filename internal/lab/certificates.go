package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// KeyPair names the two PEM files of a certificate and its key.
type KeyPair struct {
	Cert string // path of the certificate
	Key  string // path of its private key, readable only by its user
}

// authority is a certificate authority for one server. Its key exists only in memory.
type authority struct {
	dir    string
	caCert string // path of the CA's certificate
	server KeyPair

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// certLifetime is generous: no lab server runs for longer than a day.
const certLifetime = 30 * 24 * time.Hour

func newAuthority(dir string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create certificate authority: %w", err)
	}
	template := newTemplate("weir lab CA")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("create certificate authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("create certificate authority: %w", err)
	}
	a := &authority{dir: dir, caCert: filepath.Join(dir, "ca.crt"), cert: cert, key: key}
	if err := writePEM(a.caCert, "CERTIFICATE", der, 0o644); err != nil {
		return nil, err
	}
	return a, nil
}

func newTemplate(commonName string) *x509.Certificate {
	// An hour back, for clients whose clock is behind.
	from := time.Now().Add(-time.Hour)
	return &x509.Certificate{
		SerialNumber: new(big.Int).SetInt64(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: commonName},
		NotBefore:    from,
		NotAfter:     from.Add(certLifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

// issueServer makes the server's certificate and gives its key to the user as, since PostgreSQL
// refuses a key that others may read.
func (a *authority) issueServer(as *identity) error {
	t := newTemplate("localhost")
	t.DNSNames = []string{"localhost"}
	t.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	pair, err := a.issue("server", t)
	if err != nil {
		return err
	}
	a.server = pair
	if err := as.chown(pair.Key); err != nil {
		return fmt.Errorf("hand over server key: %w", err)
	}
	return nil
}

var roleName = regexp.MustCompile(`^[A-Za-z0-9_]{1,63}$`)

// issueClient makes a certificate that names a role.
func (a *authority) issueClient(role string) (KeyPair, error) {
	if !roleName.MatchString(role) {
		return KeyPair{}, fmt.Errorf("role %q: only letters, digits and underscores fit a file name", role)
	}
	t := newTemplate(role)
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.issue("client-"+role, t)
}

// pair names a client certificate's files, issued or not.
func (a *authority) pair(role string) KeyPair { return a.files("client-" + role) }

func (a *authority) files(name string) KeyPair {
	return KeyPair{Cert: filepath.Join(a.dir, name+".crt"), Key: filepath.Join(a.dir, name+".key")}
}

func (a *authority) issue(name string, template *x509.Certificate) (KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, fmt.Errorf("issue %s certificate: %w", name, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("issue %s certificate: %w", name, err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("issue %s certificate: %w", name, err)
	}
	pair := a.files(name)
	err = errors.Join(
		writePEM(pair.Cert, "CERTIFICATE", der, 0o644),
		writePEM(pair.Key, "PRIVATE KEY", keyDER, 0o600),
	)
	return pair, err
}

func writePEM(path, kind string, der []byte, mode os.FileMode) error {
	content := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(path, content, mode); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}

// CACert is the path of the CA's certificate, or "" without TLS.
func (s *server) CACert() string {
	if s.tls == nil {
		return ""
	}
	return s.tls.caCert
}

// ServerCert names the files of the server's certificate; both are empty
// without TLS. The key belongs to the server's user.
func (s *server) ServerCert() KeyPair {
	if s.tls == nil {
		return KeyPair{}
	}
	return s.tls.server
}

// ClientCert issues a certificate by which a client may log in as role on a
// TLSMutual server. The files go with the server's directory.
func (s *server) ClientCert(role string) (KeyPair, error) {
	if s.tls == nil {
		return KeyPair{}, errors.New("issue client certificate: the server has no TLS")
	}
	return s.tls.issueClient(role)
}
