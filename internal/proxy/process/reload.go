package process

import (
	"crypto/tls"
	"slices"
	"strings"
	"sync/atomic"
)

// Reload reads the configuration again and applies what can change while the proxy
// serves. A mistake in it changes nothing. It implements core.Process.
func (p *process) Reload() error {
	p.reloading.Lock()
	defer p.reloading.Unlock()
	err := p.reload()
	if err != nil {
		p.log.Error("reload refused, everything stays as it was", "error", err)
	}
	return err
}

func (p *process) reload() error {
	now, later, err := p.env.Load()
	if err != nil {
		return err
	}
	cert := now.clientTLS()
	asBefore := false
	if (cert == nil) != (p.cfg.clientTLS() == nil) { // certificates are replaced, not added or removed
		later = append(later, "client_tls_cert")
		cert, asBefore = nil, true
	}
	users := 0
	if p.pg != nil && now.Postgres != nil {
		if asBefore {
			now.Postgres.ClientTLSMode = p.cfg.Postgres.ClientTLSMode
		}
		if err := p.pg.Reload(*now.Postgres); err != nil {
			return err
		}
		users += len(now.Postgres.Users)
	}
	if p.my != nil && now.MySQL != nil {
		if asBefore {
			now.MySQL.ClientTLSMode = p.cfg.MySQL.ClientTLSMode
		}
		if err := p.my.Reload(*now.MySQL); err != nil {
			return err
		}
		users += len(now.MySQL.Users)
	}
	if cert != nil {
		p.cert.now.Store(cert)
	}
	if err := p.audit.Reopen(); err != nil {
		p.log.Error("audit log stays where it was", "error", err)
	}
	p.level.Set(now.LogLevel)
	p.delay.Store(int64(now.ShutdownDelay))
	p.log.Info("configuration reloaded", "users", users, "log_level", now.LogLevel.String())
	if len(later) > 0 {
		slices.Sort(later)
		p.log.Warn("changes that need a restart were not applied", "keys", strings.Join(later, " "))
	}
	return nil
}

// certificate is a TLS configuration that can be replaced while connections are
// made by it.
type certificate struct{ now atomic.Pointer[tls.Config] }

// follow returns a configuration that is always the latest; nil stays nil.
func (c *certificate) follow(first *tls.Config) *tls.Config {
	if first == nil {
		return nil
	}
	c.now.Store(first)
	following := first.Clone()
	following.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.now.Load(), nil }
	return following
}
