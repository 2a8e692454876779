//go:build linux

package proxycmd

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/cli/clitest"
)

func TestConvertAndRefusals(t *testing.T) {
	clitest.ClearEnvironment(t)
	ini := filepath.Join(t.TempDir(), "pgbouncer.ini")
	clitest.Write(t, ini, "[databases]\nshop = host=db.example.com\n[pgbouncer]\nlisten_addr = 127.0.0.1\nunix_socket_dir =\npkt_buf = 8192\n")
	out := program.Run(t, "proxy", "convert", ini)
	for _, want := range []string{"postgres: 'postgres://db.example.com:5432/postgres?sslmode=prefer'\n", "mode: session\n", ":6: pkt_buf has no effect in weir"} {
		if !strings.Contains(out, want) {
			t.Errorf("convert says no %q:\n%s", want, out)
		}
	}
	clitest.Write(t, ini, "[databases]\nshop = host=db.example.com dbname=real\n[pgbouncer]\n")
	if out := program.Run(t, "proxy", "convert", ini); !strings.Contains(out, "weir.yaml cannot say all of it") || !strings.Contains(out, "exit 1") {
		t.Errorf("what cannot be said: %s", out)
	}
	clitest.Write(t, ini, "[databases]\nshop = host=db.example.com\n[pgbouncer]\nauth_type = ldap\nauth_ldap_options = ldapurl=\"ldap://d.example.com/dc=x?uid?sub\"\n")
	if out := program.Run(t, "proxy", "convert", ini); !strings.Contains(out, "auth: ldap\nldap: 'ldapurl=\"ldap://d.example.com/dc=x?uid?sub\"'\n") {
		t.Errorf("LDAP: %s", out)
	}
	clitest.Write(t, ini, "[pgbouncer]\nauth_type = pam\n")
	for _, args := range [][]string{{"pgbouncer", ini}, {"proxy", "convert", ini}} {
		if out := program.Run(t, args...); !strings.Contains(out, "pgbouncer.ini:2: auth_type: weir has no pam") {
			t.Errorf("%v: %s", args, out)
		}
	}
	if out := program.Run(t, "pgbouncer", "-d", ini); !strings.Contains(out, "weir does not leave the foreground") {
		t.Errorf("-d: %s", out)
	}
	if out := program.Run(t, "pgbouncer", "--version"); !strings.Contains(out, "speaks as PgBouncer") {
		t.Errorf("--version: %s", out)
	}
	if out := program.Run(t, "proxy", "convert", "--help"); !strings.Contains(out, "weir proxy convert FILE.ini") {
		t.Errorf("--help: %s", out)
	}
}
