package kvcmd

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/testkit"
)

// kvAuthority signs certificates for replicas and clients.
type kvAuthority struct {
	t    *testing.T
	dir  string
	file string // of its own certificate
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newKVAuthority(t *testing.T) *kvAuthority {
	t.Helper()
	a := &kvAuthority{t: t, dir: t.TempDir()}
	a.file, _ = a.issue("authority")
	return a
}

// issue makes a certificate for loopback addresses, the authority's own first.
func (a *kvAuthority) issue(name string) (cert, key string) {
	a.t.Helper()
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
		parent, signer = c, secret
		a.cert, a.key = c, secret
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, secret.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, key = filepath.Join(a.dir, name+".crt"), filepath.Join(a.dir, name+".key")
	clitest.Write(a.t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	clitest.Write(a.t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	return cert, key
}

// flags make a client of this authority.
func (a *kvAuthority) flags(name string) []string {
	a.t.Helper()
	cert, key := a.issue(name)
	return []string{"--tls-ca=" + a.file, "--tls-cert=" + cert, "--tls-key=" + key}
}

// Replicas that demand both a secret and certificates refuse clients and
// replicas that lack either, and say why on both sides.
func TestKVTrust(t *testing.T) {
	dir := t.TempDir()
	secret, wrong := filepath.Join(dir, "secret"), filepath.Join(dir, "wrong")
	clitest.Write(t, secret, "a secret that is long enough\n")
	clitest.Write(t, wrong, "another secret, as long as that\n")
	ca, stranger := newKVAuthority(t), newKVAuthority(t)
	cert, key := ca.issue("replica")
	r := newKVRig(t, lab.KVConfig{
		Durability: lab.Fast,
		Flags:      map[string]string{"secret-file": secret, "tls-cert": cert, "tls-key": key, "tls-ca": ca.file},
	})
	client := append(ca.flags("client"), "--timeout=1m")
	kvPut := func(flags ...string) []string { return append([]string{"kv", "put", "k", "v"}, flags...) }
	with := func(more ...string) []string { return append(more, client...) }

	program.Must(t, kvPut(with("--secret-file="+secret)...)...)
	program.Refuse(t, cli.ExitFailed, []string{"not authenticated"}, kvPut(with("--secret-file="+wrong)...)...)
	program.Refuse(t, cli.ExitFailed, []string{"not authenticated"}, kvPut(with()...)...)
	program.Refuse(t, cli.ExitFailed, []string{"not authenticated"}, kvPut(append(stranger.flags("stranger"), "--timeout=1m", "--secret-file="+secret)...)...)
	program.Refuse(t, cli.ExitFailed, []string{"TLS demanded"}, kvPut("--timeout=1m", "--secret-file="+secret)...)
	program.Refuse(t, cli.ExitFailed, []string{"not authenticated"}, append([]string{"kv", "status"}, with("--secret-file="+wrong)...)...)
	if code, body := r.admin(1, "/metrics"); code != http.StatusOK || !strings.Contains(body, `reason="not authenticated"`) {
		t.Errorf("/metrics does not count who was refused: %d", code)
	}
	r.logged(1, "no connection", "not authenticated")

	// A replica that cannot prove what it must gets no connection; the others
	// work without it, and it says why.
	args := r.command(3)
	r.node(3).Kill()
	for name, change := range map[string]struct {
		without string // the beginning of flags that are left out
		flags   []string
		says    string
	}{
		"wrong secret":    {"--secret-file", []string{"--secret-file=" + wrong}, "not authenticated"},
		"no secret":       {"--secret-file", nil, "not authenticated"},
		"wrong authority": {"--tls-", stranger.flags("replica"), "not authenticated"},
		"no certificate":  {"--tls-", nil, "TLS demanded"},
	} {
		t.Run(name, func(t *testing.T) {
			kept := slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return strings.HasPrefix(arg, change.without) })
			p := strayed(t, append(kept, change.flags...)...)
			p.says("weir kv serve starts", "cannot connect", change.says)
			url := "http://" + r.AdminAddrs()[2]
			testkit.Eventually(t, "the replica runs", func() bool { return answers(url+"/healthz") == http.StatusOK })
			if code := answers(url + "/readyz"); code != http.StatusServiceUnavailable {
				t.Errorf("/readyz: %d", code)
			}
			program.Must(t, kvPut(with("--secret-file="+secret)...)...)
			if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			p.ends(cli.ExitFine, "weir kv serve has stopped")
		})
	}
	if logs := r.node(1).LogTail(10_000) + r.node(2).LogTail(10_000); strings.Contains(logs, "long enough") || strings.Contains(logs, "as long as that") {
		t.Error("a log says a secret")
	}
}
