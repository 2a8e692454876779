package netwire

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"
)

// A certificate without other names is the host's of its common name.
func TestCommonName(t *testing.T) {
	for _, tt := range []struct {
		name, host string
		want       bool
	}{
		{"db.example.com", "DB.example.com", true},
		{"db.example.com", "db.example.com.", true},
		{"db.example.com", "db2.example.com", false},
		{"*.example.com", "db.example.com", true},
		{"*.example.com", "a.db.example.com", false},
		{"*.com", "example.com", false},
		{"*.0.0.1", "127.0.0.1", false},
		{"127.0.0.1", "127.0.0.1", true},
		{"", "", false},
	} {
		cert := &x509.Certificate{Subject: pkix.Name{CommonName: tt.name}}
		if got := commonName(cert, tt.host); got != tt.want {
			t.Errorf("%s for %s: %v", tt.name, tt.host, got)
		}
		if cert.DNSNames = []string{"other"}; !named(cert) {
			t.Error("a name is not seen")
		}
	}
}
