package postgres

import (
	"context"
	"testing"

	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A new password holds where a reload names the same servers, and only there: it may be that
// of the others.
func TestReloadRenewsPasswordsOfTheSameServersAlone(t *testing.T) {
	at := func(password string, addresses ...string) (hosts []pgwire.ConnectConfig) {
		for _, a := range addresses {
			hosts = append(hosts, pgwire.ConnectConfig{Address: a, User: "u", Password: password})
		}
		return hosts
	}
	for _, c := range []struct {
		name   string
		hosts  []pgwire.ConnectConfig
		change func(next *Config)
		want   string
	}{
		{name: "the same", hosts: at("second", "a:1", "b:1"), want: "second"},
		{name: "another host", hosts: at("second", "a:1", "c:1"), want: "first"},
		{name: "one host more", hosts: at("second", "a:1", "b:1", "c:1"), want: "first"},
		{name: "the other host first", hosts: at("second", "b:1", "a:1"), want: "first"},
		{name: "another target", hosts: at("second", "a:1", "b:1"), change: func(next *Config) { next.Target = upstream.TargetPrimary }, want: "first"},
		{name: "another cluster", hosts: at("second", "a:1", "b:1"), change: func(next *Config) { next.Patroni = []string{"http://p:1"} }, want: "first"},
	} {
		t.Run(c.name, func(t *testing.T) {
			with := func(hosts []pgwire.ConnectConfig) Config {
				return Config{Listen: "127.0.0.1:0", Postgres: hosts[0], Hosts: hosts}
			}
			s, err := New(with(at("first", "a:1", "b:1")))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				if err := s.Run(ctx); err != nil {
					t.Error(err)
				}
			}()
			next := with(c.hosts)
			if c.change != nil {
				c.change(&next)
			}
			if err := s.Reload(next); err != nil {
				t.Fatal(err)
			}
			now := s.cfg()
			for what, password := range map[string]string{"server": now.Postgres.Password, "host": now.Hosts[0].Password, "other host": now.Hosts[1].Password} {
				if password != c.want {
					t.Errorf("%s has the %s password, want the %s", what, password, c.want)
				}
			}
			secret, _ := s.creds.Secret("u")
			if password, _ := secret.Plain(); password != c.want {
				t.Errorf("clients are not checked by the %s password", c.want)
			}
		})
	}
}
