package ldap

import (
	"strings"
	"testing"

	goldap "github.com/go-ldap/ldap/v3"
	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for _, x := range []struct {
		text string
		want Options
	}{
		{`ldapserver=a.example ldapprefix="uid=" ldapsuffix=", ou=p, dc=x"`, Options{Servers: []string{"a.example:389"}, Prefix: "uid=", Suffix: ", ou=p, dc=x"}},
		{`ldapserver="a b:99 [::1]" ldapport=3 ldapscheme=ldaps "ldapsuffix"=@x`, Options{Servers: []string{"a:3", "b:99", "[::1]:3"}, TLS: true, Suffix: "@x"}},
		{`ldapserver=a ldapbasedn="dc=x" ,ldaptls=1`, Options{Servers: []string{"a:389"}, StartTLS: true, BaseDN: "dc=x", Filter: "(uid=$username)"}},
		{`ldapserver=a ldapbasedn=dc=x ldapsearchattribute=mail ldapbinddn="cn=""q"",dc=x" ldapbindpasswd="a b"`, Options{
			Servers: []string{"a:389"}, BaseDN: "dc=x", BindDN: `cn="q",dc=x`, BindPassword: "a b", Filter: "(mail=$username)",
		}},
		{`ldapserver=a ldapbasedn=dc=x ldapsearchfilter="uid=$username"`, Options{Servers: []string{"a:389"}, BaseDN: "dc=x", Filter: "(uid=$username)"}},
		{`ldapurl="ldap://a:1/dc=x?cn?one"`, Options{Servers: []string{"a:1"}, BaseDN: "dc=x", Filter: "(cn=$username)", Scope: goldap.ScopeSingleLevel}},
		{`ldapurl="LDAPS://[::1]/ou=a%20b,dc=x"`, Options{Servers: []string{"[::1]:636"}, TLS: true, BaseDN: "ou=a b,dc=x", Filter: "(uid=$username)", Scope: goldap.ScopeBaseObject}},
		{`ldapurl="ldap://a/dc=x??sub?(|(uid=$username)(mail=$username))"`, Options{Servers: []string{"a:389"}, BaseDN: "dc=x", Filter: "(|(uid=$username)(mail=$username))"}},
	} {
		if x.want.BaseDN != "" && !strings.Contains(x.text, "ldapurl") || strings.Contains(x.text, "?sub") || x.want.BaseDN == "" {
			x.want.Scope = goldap.ScopeWholeSubtree
		}
		got, err := Parse(x.text)
		if err != nil {
			t.Errorf("%s: %v", x.text, err)
			continue
		}
		if d := cmp.Diff(x.want, *got); d != "" {
			t.Errorf("%s: (-want +got)\n%s", x.text, d)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                "no LDAP server",
		"ldapserver=a":    "add ldapbasedn, ldapprefix or ldapsuffix",
		"ldapbasedn=dc=x": "no LDAP server",
		"ldapserver=a ldapprefix=x ldapbasedn=dc=x":                                     "exclude each other",
		"ldapserver=a ldapbinddn=cn=x":                                                  "add ldapbasedn",
		"ldapserver=a ldapbasedn=dc=x ldapbindpasswd=x":                                 "needs ldapbinddn",
		"ldapserver=a ldapbasedn=dc=x ldapsearchattribute=a ldapsearchfilter=$username": "exclude each other",
		"ldapserver=a ldapbasedn=dc=x ldapsearchfilter=(uid=x)":                         "the same entry for everyone",
		"ldapserver=a ldapbasedn=dc=x ldapsearchfilter=(uid=$username":                  "not one of LDAP's",
		"ldapserver=a ldapport=x ldapprefix=x":                                          "ldapport: want a port",
		"ldapserver=a ldapscheme=http":                                                  "ldapscheme: want ldap or ldaps",
		"ldapserver=a ldaptls=on":                                                       "ldaptls: want 0 or 1",
		"ldapserver=a ldapscheme=ldaps ldaptls=1 ldapprefix=x":                          "TLS already",
		"ldapserver=a ldapfoo=1":                                                        "an option that LDAP does not have",
		"ldapserver":                                                                    "want NAME=VALUE",
		`ldapprefix="x`:                                                                 "not closed",
		"ldapurl=a":                                                                     "ldapurl: want ldap://",
		"ldapurl=http://a/dc=x":                                                         "want ldap or ldaps",
		"ldapurl=ldap://a/dc=x?uid?all":                                                 `scope "all"`,
		"ldapurl=ldap://u@a/dc=x":                                                       "must not contain a user",
		"ldapurl=ldap://a:0/dc=x":                                                       "want a port",
		"ldapurl=ldap://a/%zz":                                                          "escapes are broken",
		"ldapurl=ldap://a/dc=x????bindname=x":                                           "extensions",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// User names are never read as syntax.
func TestNamesAreEscaped(t *testing.T) {
	search, err := Parse(`ldapserver=a ldapbasedn=dc=x`)
	if err != nil {
		t.Fatal(err)
	}
	for user, want := range map[string]string{
		"bob": "(uid=bob)", "*": `(uid=\2a)`, "a)(uid=*": `(uid=a\29\28uid=\2a)`, `a\2a`: `(uid=a\5c2a)`, "$username": "(uid=$username)",
	} {
		if got := search.filter(user); got != want {
			t.Errorf("filter of %q: %s, want %s", user, got, want)
		}
	}
	for _, x := range []struct{ options, user, want string }{
		{`ldapprefix="uid=" ldapsuffix=",dc=x"`, "bob", "uid=bob,dc=x"},
		{`ldapprefix="uid=" ldapsuffix=",dc=x"`, "bob,ou=admins", `uid=bob\,ou\=admins,dc=x`},
		{`ldapprefix="uid="`, " b+c=d", `uid=\ b\+c\=d`},
		{`ldapsuffix=", dc=x"`, "uid=bob", `uid\=bob, dc=x`},
		{`ldapsuffix="@corp.example"`, "b+c", "b+c@corp.example"},
		{`ldapprefix="CORP\"`, "bob", `CORP\bob`},
	} {
		o, err := Parse("ldapserver=a " + x.options)
		if err != nil {
			t.Fatal(err)
		}
		if got := o.name(x.user); got != x.want {
			t.Errorf("%s: %q is %s, want %s", x.options, x.user, got, x.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`ldapserver="a b" ldapprefix="uid=" ldapsuffix=", dc=x"`, "bob")
	f.Add(`ldapurl="ldap://[::1]:1/dc=x?cn?one?(uid=$username)"`, "*)(")
	f.Fuzz(func(t *testing.T, text, user string) {
		o, err := Parse(text)
		if err != nil {
			return
		}
		_ = o.name(user)
		if o.BaseDN == "" {
			return
		}
		if _, err := goldap.CompileFilter(o.filter(user)); err != nil && len(user) > 0 {
			t.Errorf("%q of %q: %v", o.filter(user), user, err)
		}
	})
}
