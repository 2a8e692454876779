package mywire

import (
	"crypto/tls"
	"fmt"
	"strings"

	"github.com/weirdb/weir/internal/wire/netwire"
)

// TLSMode is one of the mysql client's ssl-mode names. AcceptConfig.TLSMode says what it
// requires of clients, ConnectConfig.TLSMode what of servers.
type TLSMode string

// The TLS modes, weakest first.
const (
	TLSDisabled       TLSMode = "DISABLED"
	TLSPreferred      TLSMode = "PREFERRED"
	TLSRequired       TLSMode = "REQUIRED"
	TLSVerifyCA       TLSMode = "VERIFY_CA"
	TLSVerifyIdentity TLSMode = "VERIFY_IDENTITY"
)

// ParseTLSMode parses the name of a TLS mode, in upper or lower case. It also accepts the names
// of PostgreSQL's modes, so that one configuration can name both.
func ParseTLSMode(s string) (TLSMode, error) {
	switch m := TLSMode(strings.ReplaceAll(strings.ToUpper(s), "-", "_")); m {
	case TLSDisabled, TLSPreferred, TLSRequired, TLSVerifyCA, TLSVerifyIdentity:
		return m, nil
	case "DISABLE":
		return TLSDisabled, nil
	case "ALLOW", "PREFER":
		return TLSPreferred, nil
	case "REQUIRE":
		return TLSRequired, nil
	case "VERIFY_FULL":
		return TLSVerifyIdentity, nil
	}
	return "", fmt.Errorf("TLS mode %q: want DISABLED, PREFERRED, REQUIRED, VERIFY_CA or VERIFY_IDENTITY", s)
}

func (m TLSMode) demanded() bool { return m == TLSRequired || m.verifies() }
func (m TLSMode) verifies() bool { return m == TLSVerifyCA || m == TLSVerifyIdentity }

// clientConfig derives the TLS config of one connection to host. VERIFY_IDENTITY checks the
// name, VERIFY_CA only the chain; the other modes accept any certificate, as the mysql client
// does.
func clientConfig(base *tls.Config, mode TLSMode, host string) *tls.Config {
	check := netwire.CheckNothing
	switch mode {
	case TLSVerifyCA:
		check = netwire.CheckChain
	case TLSVerifyIdentity:
		check = netwire.CheckName
	}
	return netwire.ClientTLS(base, check, host)
}

// serverConfig derives from base the config with which weir accepts clients. One that base
// returns for a client has to require the same.
func serverConfig(base *tls.Config, mode TLSMode) *tls.Config {
	c := base.Clone()
	if base.GetConfigForClient != nil {
		c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			other, err := base.GetConfigForClient(hello)
			if other == nil || err != nil {
				return nil, err
			}
			return serverConfig(other, mode), nil
		}
	}
	if mode.verifies() {
		c.ClientAuth = tls.RequireAndVerifyClientCert
	} else if c.ClientCAs != nil && c.ClientAuth == tls.NoClientCert {
		c.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return c
}
