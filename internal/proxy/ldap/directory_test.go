package ldap_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/ldap"
)

// users are those of the tests' server.
var users = []lab.LDAPUser{
	{UID: "bob", Mail: "bob@example.net", Password: "secret"},
	{UID: "eve", Mail: "same@example.net", Password: "other"},
	{UID: "eva", Mail: "same@example.net", Password: "other"},
	{UID: "o,d+d", Password: "odd"},
	{UID: "locked"},
}

// base is search+bind without more.
const base = `ldapbasedn="` + lab.LDAPBase + `" ldapbinddn="` + lab.LDAPManager + `" ldapbindpasswd=weir `

func directory(t *testing.T, options, ca string, timeout time.Duration) *ldap.Directory {
	t.Helper()
	o, err := ldap.Parse(options)
	if err != nil {
		t.Fatalf("%s: %v", options, err)
	}
	d, err := ldap.New(o, ca, timeout)
	if err != nil {
		t.Fatalf("%s: %v", options, err)
	}
	return d
}

// want compares what a check has said with ok, refused, or the words of another error.
func want(t *testing.T, what string, err error, want string) {
	t.Helper()
	got := "ok"
	switch {
	case errors.Is(err, ldap.ErrRefused):
		got = "refused"
	case err != nil:
		got = err.Error()
	}
	if got != want && (want == "ok" || want == "refused" || err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%s: %v, want %s", what, err, want)
	}
}

func TestDirectoryChecks(t *testing.T) {
	t.Parallel()
	server := labtest.LDAP(t, users...)
	at := fmt.Sprintf("ldapserver=%s ldapport=%d ", server.Host(), server.Port())
	people := `ldapprefix="uid=" ldapsuffix=",ou=people,` + lab.LDAPBase + `"`
	url := fmt.Sprintf("ldap://%s/%s", server.Addr(), lab.LDAPBase)
	for _, x := range []struct{ name, options, user, password, want string }{
		{"simple bind", at + people, "bob", "secret", "ok"},
		{"simple bind, wrong password", at + people, "bob", "wrong", "refused"},
		{"simple bind, unknown user", at + people, "nobody", "secret", "refused"},
		// Such a bind succeeds at the server, as an anonymous one.
		{"simple bind, no password", at + people, "bob", "", "refused"},
		{"simple bind, no name", at + people, "", "secret", "refused"},
		{"simple bind, odd name", at + people, "o,d+d", "odd", "ok"},
		{"simple bind, name with syntax", at + `ldapprefix="uid="`, "bob,ou=people," + lab.LDAPBase, "secret", "refused"},
		{"simple bind, name with a NUL", at + people, "bob\x00", "secret", "refused"},
		{"search", at + base, "bob", "secret", "ok"},
		{"search, wrong password", at + base, "bob", "wrong", "refused"},
		{"search, unknown user", at + base, "nobody", "secret", "refused"},
		{"search, no password", at + base, "bob", "", "refused"},
		{"search, user without one", at + base, "locked", "secret", "refused"},
		{"search, odd name", at + base, "o,d+d", "odd", "ok"},
		{"search, name with syntax", at + base, "bo*", "secret", "refused"},
		{"search, name with a filter", at + base, "bob)(uid=*", "secret", "refused"},
		{"search, attribute", at + base + "ldapsearchattribute=mail", "bob@example.net", "secret", "ok"},
		{"search, two entries", at + base + "ldapsearchattribute=mail", "same@example.net", "other", "refused"},
		{"search, filter", at + base + `ldapsearchfilter="(|(uid=$username)(mail=$username))"`, "bob@example.net", "secret", "ok"},
		{"search, URL", `ldapurl="` + url + `?mail?sub" ldapbinddn="` + lab.LDAPManager + `" ldapbindpasswd=weir`, "bob@example.net", "secret", "ok"},
		{"search, URL of too little", `ldapurl="` + url + `?uid?one" ldapbinddn="` + lab.LDAPManager + `" ldapbindpasswd=weir`, "bob", "secret", "refused"},
		{"search, anonymous, who may see nothing", at + `ldapbasedn="` + lab.LDAPBase + `"`, "bob", "secret", "refused"},
		// An error in weir's own configuration is no refusal of the user.
		{"search, wrong bind password", at + strings.Replace(base, "passwd=weir", "passwd=no", 1), "bob", "secret", "for the search (ldapbinddn"},
	} {
		want(t, x.name, directory(t, x.options, "", 0).Check(t.Context(), x.user, x.password), x.want)
	}
}

func TestDirectorySpeaksTLS(t *testing.T) {
	t.Parallel()
	server := labtest.LDAP(t, users...)
	plain := fmt.Sprintf("ldapserver=%s ldapport=%d ", server.Host(), server.Port())
	secure := fmt.Sprintf("ldapserver=%s ldapport=%d ", server.Host(), server.PortTLS())
	none := filepath.Join(t.TempDir(), "other.pem")
	other := labtest.LDAP(t)
	pem, err := os.ReadFile(other.CACert())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(none, pem, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ name, options, ca, want string }{
		{"StartTLS", plain + base + "ldaptls=1", server.CACert(), "ok"},
		{"LDAPS", secure + base + "ldapscheme=ldaps", server.CACert(), "ok"},
		{"LDAPS by URL", fmt.Sprintf(`ldapurl="ldaps://%s/%s?uid?sub" ldapbinddn="%s" ldapbindpasswd=weir`, server.AddrTLS(), lab.LDAPBase, lab.LDAPManager), server.CACert(), "ok"},
		{"StartTLS, unknown authority", plain + base + "ldaptls=1", none, "certificate signed by unknown authority"},
		{"LDAPS, unknown authority", secure + base + "ldapscheme=ldaps", none, "certificate signed by unknown authority"},
		{"LDAPS, name of another", strings.Replace(secure, server.Host(), "127.0.0.2", 1) + base + "ldapscheme=ldaps", server.CACert(), "127.0.0.2"},
		{"LDAPS to the port without", plain + base + "ldapscheme=ldaps", server.CACert(), "TLS"},
		{"StartTLS on the port with", secure + base + "ldaptls=1", server.CACert(), "StartTLS"},
	} {
		want(t, x.name, directory(t, x.options, x.ca, 0).Check(t.Context(), "bob", "secret"), x.want)
		if x.want == "ok" {
			want(t, x.name, directory(t, x.options, x.ca, 0).Check(t.Context(), "bob", "wrong"), "refused")
		}
	}
	o, err := ldap.Parse(plain + base + "ldaptls=1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ldap.New(o, filepath.Join(t.TempDir(), "gone"), 0); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// A server that demands TLS is not asked without it by mistake.
func TestDirectoryThatWantsTLS(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	if _, err := lab.FindLDAP(""); lab.NotInstalled(err) {
		labtest.LDAP(t) // skips
	}
	server, err := lab.StartLDAP(ctx, lab.BrokerConfig{Settings: map[string]string{"security": "tls=1"}}, users...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	at := fmt.Sprintf(`ldapserver=%s ldapport=%d ldapprefix="uid=" ldapsuffix=",ou=people,%s" `, server.Host(), server.Port(), lab.LDAPBase)
	want(t, "without TLS", directory(t, at, "", 0).Check(t.Context(), "bob", "secret"), "Confidentiality Required")
	want(t, "with TLS", directory(t, at+"ldaptls=1", server.CACert(), 0).Check(t.Context(), "bob", "secret"), "ok")
}

func TestDirectoryThatIsAway(t *testing.T) {
	t.Parallel()
	server := labtest.LDAP(t, users...)
	gone := labtest.Addrs(t, 1)[0]
	alone := fmt.Sprintf("ldapserver=%s ldapport=%d ", server.Host(), server.Port()) + base
	second := fmt.Sprintf(`ldapserver="%s %s" `, gone, server.Addr()) + base
	one, both := directory(t, alone, "", labtest.Patience), directory(t, second, "", labtest.Patience)
	want(t, "nobody listens at the first", both.Check(t.Context(), "bob", "secret"), "ok")
	want(t, "the second refuses", both.Check(t.Context(), "bob", "wrong"), "refused")

	server.Pause()
	const hasty = 300 * time.Millisecond
	want(t, "it hangs", directory(t, alone, "", hasty).Check(t.Context(), "bob", "secret"), "has not answered within 300ms")
	want(t, "one hangs, nobody listens at the other", directory(t, second, "", hasty).Check(t.Context(), "bob", "secret"), "connection refused")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the client has gone"))
	want(t, "nobody waits", one.Check(ctx, "bob", "secret"), "the client has gone")
	server.Resume()
	want(t, "it goes on", one.Check(t.Context(), "bob", "secret"), "ok")

	server.Kill()
	want(t, "it is down", one.Check(t.Context(), "bob", "secret"), "connection refused")
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, "it is back", one.Check(t.Context(), "bob", "secret"), "ok")
}

// However many ask, a server that hangs is asked by a bounded number at a time.
func TestDirectoryIsAskedByFew(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	arrived := make(chan net.Conn, 1000)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(arrived)
				return
			}
			arrived <- c
		}
	}()
	d := directory(t, "ldapserver="+l.Addr().String()+" "+base, "", time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan error)
	const asked, most = 100, 32
	for range asked {
		go func() { results <- d.Check(ctx, "bob", "secret") }()
	}
	var conns []net.Conn
	for range most {
		conns = append(conns, <-arrived)
	}
	cancel()
	for range asked {
		if err := <-results; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	}
	_ = l.Close()
	for c := range arrived {
		conns = append(conns, c)
	}
	if len(conns) != most {
		t.Errorf("%d connections, want %d", len(conns), most)
	}
	for _, c := range conns {
		_ = c.Close()
	}
}
