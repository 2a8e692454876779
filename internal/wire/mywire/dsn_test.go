package mywire

import (
	"crypto/rand"
	"crypto/rsa"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// parser returns a parser that sees env and nothing of this machine's own.
func parser(env map[string]string) *dsnParser {
	return &dsnParser{set: map[string]string{}, getenv: func(name string) string { return env[name] }}
}

func TestParseDSN(t *testing.T) {
	old := defaultSockets
	defaultSockets = nil
	t.Cleanup(func() { defaultSockets = old })
	env := map[string]string{}
	tcp := func(c ConnectConfig) ConnectConfig {
		c.Network = "tcp"
		if c.TLSMode == "" {
			c.TLSMode = TLSPreferred
		}
		return c
	}
	tests := []struct {
		dsn  string
		want ConnectConfig
	}{
		{"mysql://app@db.test/shop", tcp(ConnectConfig{Address: "db.test:3306", User: "app", Database: "shop"})},
		{"mariadb://app:p%40s%2F%3As@db.test:6000", tcp(ConnectConfig{Address: "db.test:6000", User: "app", Password: "p@s/:s"})},
		{"mysql://app@[::1]:6000/?ssl-mode=disabled", tcp(ConnectConfig{Address: "[::1]:6000", User: "app", TLSMode: TLSDisabled})},
		{"mysql://app@/shop?socket=/tmp/my.sock", ConnectConfig{Network: "unix", Address: "/tmp/my.sock", User: "app", Database: "shop", TLSMode: TLSPreferred}},
		{"mysql://app@h/?tls-mode=verify-full&connect-timeout=3", tcp(ConnectConfig{Address: "h:3306", User: "app", TLSMode: TLSVerifyIdentity, Timeout: 3 * time.Second})},
		{"mysql://app@h/?SSL_MODE=VERIFY_CA&default-character-set=latin1", tcp(ConnectConfig{Address: "h:3306", User: "app", TLSMode: TLSVerifyCA, Charset: CharsetLatin1})},
		{"mysql://app@h?ssl=1", tcp(ConnectConfig{Address: "h:3306", User: "app", TLSMode: TLSRequired})},
		{"mysql://app@h?ssl=0", tcp(ConnectConfig{Address: "h:3306", User: "app", TLSMode: TLSDisabled})},
		{"mysql://app@h?ssl-verify-server-cert=1", tcp(ConnectConfig{Address: "h:3306", User: "app", TLSMode: TLSVerifyIdentity})},
		{"mysql://app@h?program-name=report", tcp(ConnectConfig{Address: "h:3306", User: "app", Attrs: []Attr{{"program_name", "report"}}})},
		{"app:p@ss:w/rd@tcp(h:33)/shop?parseTime=true&loc=Local&tls=skip-verify", tcp(ConnectConfig{Address: "h:33", User: "app", Password: "p@ss:w/rd", Database: "shop", TLSMode: TLSRequired})},
		{"app@unix(/tmp/my.sock)/shop", ConnectConfig{Network: "unix", Address: "/tmp/my.sock", User: "app", Database: "shop", TLSMode: TLSPreferred}},
		{"app@/", tcp(ConnectConfig{Address: "localhost:3306", User: "app"})},
		{"app@tcp([::1]:1)/?timeout=1500ms&tls=preferred&clientFoundRows=true&charset=utf8mb4,utf8", tcp(ConnectConfig{
			Address: "[::1]:1", User: "app", Timeout: 1500 * time.Millisecond, Caps: WantedCaps | CapFoundRows, Charset: CharsetUTF8MB4,
		})},
		{"app@(h)/", tcp(ConnectConfig{Address: "h:3306", User: "app"})},
	}
	for _, tt := range tests {
		got, err := parser(env).parse(tt.dsn)
		if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(ConnectConfig{}, "TLSConfig", "ServerKey", "Dial")); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", tt.dsn, err, diff)
		}
	}
	env = map[string]string{"MYSQL_HOST": "there", "MYSQL_TCP_PORT": "77", "MYSQL_PWD": "secret", "MYSQL_UNIX_PORT": "/s"}
	for dsn, want := range map[string]string{
		"mysql://app@": "there:77", "mysql://app@h": "h:77", "mysql://app@h:5": "h:5", "app@tcp(h)/": "h:77", "mysql://app@?socket=/x": "/x",
	} {
		if got, err := parser(env).parse(dsn); err != nil || got.Address != want || got.Password != "secret" {
			t.Errorf("%s: %q, %v", dsn, got.Address, err)
		}
	}
	env = map[string]string{"MYSQL_UNIX_PORT": "/s"}
	if got, err := parser(env).parse("mysql://app@/db"); err != nil || got.Address != "/s" || got.Network != "unix" {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := parser(env).parse(""); err != nil || got.User == "" {
		t.Errorf("%v, %v", got, err)
	}
}

func TestParseDSNRefuses(t *testing.T) {
	dir := t.TempDir()
	nonsense := filepath.Join(dir, "nonsense")
	if err := os.WriteFile(nonsense, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	for dsn, want := range map[string]string{
		"mysql://u:hush@h?sslmod=x":                           `"sslmod" is unknown`,
		"mysql://u:hush@h?ssl-mode=x":                         `TLS mode "x"`,
		"mysql://u:hush@a,b":                                  "several hosts",
		"mysql://u:hush@a?target_session_attrs=read-write":    "want any",
		"mysql://u:hush/xx@h":                                 "port",
		"mysql://u:hush%zz@h":                                 "password is not percent-encoded",
		"mysql://u:hush?word=@h":                              "a parameter is unknown",
		"mysql://u:hush@h?timeout":                            "no value",
		"mysql://u:hush@h?timeout=soon":                       "timeout",
		"mysql://u:hush@h?charset=klingon":                    "klingon",
		"mysql://u:hush@h?compress=true":                      "compress",
		"mysql://u:hush@h?ssl=maybe":                          "true or false",
		"mysql://u:hush@h?tls=custom":                         `"custom"`,
		"mysql://u:hush@h?tls-version=TLSv1":                  "TLSv1.2",
		"mysql://u:hush@h?ssl-cert=x":                         "go together",
		"mysql://u:hush@h?ssl-ca=/nowhere":                    "no such file",
		"mysql://u:hush@h?ssl-ca=" + nonsense:                 "no PEM",
		"mysql://u:hush@h?server-public-key-path=/nowhere":    "no such file",
		"mysql://u:hush@h?server-public-key-path=" + nonsense: "PEM",
		"mysql://u:hush@[::1":                                 "IPv6",
		"u:hush":                                              "slash",
		"u:hush@udp(h)/":                                      "network",
		"u:hush@tcp(h/":                                       "parenthesis",
		"u:hush@tcp(h)/?sql_mode=x":                           `"sql_mode"`,
		"mysql://u:a%00b@h":                                   "NUL",
	} {
		_, err := parser(nil).parse(dsn)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", dsn, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: the error quotes the password: %v", dsn, err)
		}
	}
}

func TestParseDSNReadsTheServersKey(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	text, err := marshalRSAKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := ParseDSN("mysql://u@h?server-public-key-path=" + path)
	if err != nil || !got.ServerKey.Equal(&key.PublicKey) {
		t.Errorf("%v, %v", got.ServerKey, err)
	}
}

func FuzzParseDSN(f *testing.F) {
	for _, s := range []string{"mysql://u:p@h:1/d?ssl-mode=REQUIRED", "u:p@tcp(h:1)/d?tls=true", "u@unix(/s)/", "mysql://@[::1]/?", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d := parser(map[string]string{})
		if _, err := d.parse(s); err == nil && d.cfg.Address == "" {
			t.Errorf("%q has no address", s)
		}
	})
}

func TestParseHosts(t *testing.T) {
	for dsn, want := range map[string]string{
		"mysql://u:p@a:5,b:6/d":                                 "a:5 b:6",
		"mysql://u:p@a,[::1]/d?target_session_attrs=read-write": "a:3306 [::1]:3306 read-write",
		"u:p@tcp(a:5,b:6)/d?targetSessionAttrs=primary":         "a:5 b:6 primary",
		"mysql://u:p@a/d":                                       "a:3306",
	} {
		hosts, target, err := ParseHosts(dsn)
		got := make([]string, 0, len(hosts)+1)
		for _, h := range hosts {
			got = append(got, h.Address)
			if h.User != "u" || h.Password != "p" || h.Database != "d" {
				t.Errorf("%s: %v", dsn, h)
			}
		}
		if target != "" {
			got = append(got, target)
		}
		if s := strings.Join(got, " "); err != nil || s != want {
			t.Errorf("%s: %q, %v, want %q", dsn, s, err, want)
		}
	}
	for _, dsn := range []string{"mysql://u:hush@a,b:x/d", "mysql://u:hush@a,[::1/d"} {
		if _, _, err := ParseHosts(dsn); err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v", dsn, err)
		}
	}
}
