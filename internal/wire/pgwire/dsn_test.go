package pgwire

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5/pgconn"
)

// bareEnv hides this user's own settings and returns an empty home.
func bareEnv(t *testing.T) (home string) {
	t.Helper()
	for _, env := range dsnKeys {
		if env != "" {
			t.Setenv(env, "")
		}
	}
	for _, env := range []string{"PGTZ", "PGDATESTYLE", "PGSERVICE", "PGSERVICEFILE"} {
		t.Setenv(env, "")
	}
	home = t.TempDir()
	t.Setenv("HOME", home)
	return home
}

func TestParseDSN(t *testing.T) {
	bareEnv(t)
	tests := []struct {
		dsn  string
		want ConnectConfig
	}{
		{"postgres://app@db.test/shop", ConnectConfig{Network: "tcp", Address: "db.test:5432", User: "app", Database: "shop", TLSMode: TLSPrefer}},
		{"postgresql://app:p%40s%2F%3As@db.test:6000", ConnectConfig{Network: "tcp", Address: "db.test:6000", User: "app", Database: "app", Password: "p@s/:s", TLSMode: TLSPrefer}},
		{"postgres://app@[::1]:6000/shop?sslmode=disable", ConnectConfig{Network: "tcp", Address: "[::1]:6000", User: "app", Database: "shop", TLSMode: TLSDisable}},
		{"postgres://%2Ftmp%2Fpg/shop?user=app", ConnectConfig{Network: "unix", Address: "/tmp/pg/.s.PGSQL.5432", User: "app", Database: "shop", TLSMode: TLSPrefer}},
		{"postgres:///shop?host=/tmp/pg&port=6000&user=app&password=a%26b", ConnectConfig{Network: "unix", Address: "/tmp/pg/.s.PGSQL.6000", User: "app", Database: "shop", Password: "a&b", TLSMode: TLSPrefer}},
		{"postgres://app@h/?ssl=true&connect_timeout=3", ConnectConfig{Network: "tcp", Address: "h:5432", User: "app", Database: "app", TLSMode: TLSRequire, Timeout: 3 * time.Second}},
		{"host=h user=app dbname = 'my shop' password='it''", ConnectConfig{}}, // refused below
		{`host=h user=app dbname='my shop' password='it\'s' `, ConnectConfig{Network: "tcp", Address: "h:5432", User: "app", Database: "my shop", Password: "it's", TLSMode: TLSPrefer}},
		{`host=h user=app password=a\ b\\c`, ConnectConfig{Network: "tcp", Address: "h:5432", User: "app", Database: "app", Password: `a b\c`, TLSMode: TLSPrefer}},
		{"user=app host=h hostaddr=127.0.0.1", ConnectConfig{Network: "tcp", Address: "127.0.0.1:5432", User: "app", Database: "app", TLSMode: TLSPrefer}},
		{"user=app host=h application_name=a options='-c b=c' client_encoding=UTF8 connect_timeout=0 channel_binding=require max_protocol_version=latest", ConnectConfig{
			Network: "tcp", Address: "h:5432", User: "app", Database: "app", TLSMode: TLSPrefer, ChannelBinding: "require", ProtocolVersion: Version32,
			Params: []Param{{"application_name", "a"}, {"client_encoding", "UTF8"}, {"options", "-c b=c"}},
		}},
		{"user=app host=h fallback_application_name=weir sslmode=require sslnegotiation=direct", ConnectConfig{
			Network: "tcp", Address: "h:5432", User: "app", Database: "app", TLSMode: TLSRequire, TLSDirect: true, Params: []Param{{"application_name", "weir"}},
		}},
	}
	for _, tt := range tests {
		got, err := ParseDSN(tt.dsn)
		if tt.want.Address == "" {
			if err == nil {
				t.Errorf("%s: accepted", tt.dsn)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.dsn, err)
			continue
		}
		if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(ConnectConfig{}, "TLSConfig", "Dial", "Keys")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.dsn, diff)
		}
		theirs, err := pgconn.ParseConfig(tt.dsn)
		if err != nil {
			continue // pgx knows no percent-encoded socket directory, for one
		}
		if theirs.User != got.User || theirs.Password != got.Password || (theirs.Database != got.Database && theirs.Database != "") {
			t.Errorf("%s: pgx reads user %q, database %q", tt.dsn, theirs.User, theirs.Database)
		}
	}
}

func TestParseDSNRefuses(t *testing.T) {
	bareEnv(t)
	tests := []struct{ dsn, want string }{
		{"postgres://app:hunter2@a,b/shop", "several hosts"},
		{"host=a,b password=hunter2", "several hosts"},
		{"postgres://app:hunter2@h:port/", "port: want"},
		{"postgres://app:hunter2/x@h/", "port: want"},
		{"postgres://app:x?hunter2=y@h/", "percent-encoded"},
		{"postgres://app:x@y?hunter2=y@h/", "percent-encoded"},
		{"host=h password=x hunter2=y", "not quoted"},
		{"postgres://app:hunter2@h/?sslmod=require", `"sslmod" is unknown`},
		{"postgres://app:hunter2%zz@h/", "password is not percent-encoded"},
		{"postgres://app:hunter2@[::1/", "IPv6"},
		{"postgres://app@h/?hunter2", "percent-encoded"},
		{"host=h user=app hunter2", "key=value"},
		{"host=h password=my hunter2", "key=value"},
		{"host=h password='hunter2", "unterminated"},
		{"host=h sslmod=require password=hunter2", `"sslmod" is unknown`},
		{"host=h search_path=x", "options=-c name=value"},
		{"host=h service=x", `"service"`},
		{"host=h sslmode=maybe", "TLS mode"},
		{"host=h sslmode=verify-full", "root certificates"},
		{"host=h sslrootcert=/nowhere/x sslmode=verify-ca", "read sslrootcert"},
		{"host=h sslrootcert=system sslmode=require", "verify-full"},
		{"host=h sslcert=/nowhere/c sslkey=/nowhere/k", "read sslkey"},
		{"host=h sslnegotiation=direct", "direct TLS"},
		{"host=h sslnegotiation=x", "sslnegotiation"},
		{"host=h ssl_min_protocol_version=TLSv1", "TLSv1.2"},
		{"host=h connect_timeout=soon", "seconds"},
		{"host=h channel_binding=x", "channel binding"},
		{"host=h target_session_attrs=read-write", "any"},
		{"host=h gssencmode=require", "gssencmode"},
		{"host=h max_protocol_version=2", "max_protocol_version"},
		{"hostaddr=localhost", "not an IP address"},
		{"host=h port=0", "port"},
		{"host=h port=70000", "port"},
	}
	for _, tt := range tests {
		_, err := ParseDSN(tt.dsn)
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q", tt.dsn, err, tt.want)
		}
	}
}

func TestParseDSNEnvironment(t *testing.T) {
	bareEnv(t)
	for env, value := range map[string]string{
		"PGHOST": "envhost", "PGPORT": "6001", "PGUSER": "envuser", "PGPASSWORD": "envpass", "PGDATABASE": "envdb", "PGSSLMODE": "disable",
		"PGAPPNAME": "envapp", "PGCONNECT_TIMEOUT": "4", "PGOPTIONS": "-c a=b", "PGTZ": "UTC", "PGDATESTYLE": "ISO",
	} {
		t.Setenv(env, value)
	}
	all := []Param{{"application_name", "envapp"}, {"options", "-c a=b"}, {"TimeZone", "UTC"}, {"DateStyle", "ISO"}}
	want := ConnectConfig{
		Network: "tcp", Address: "envhost:6001", User: "envuser", Password: "envpass", Database: "envdb", TLSMode: TLSDisable, Timeout: 4 * time.Second, Params: all,
	}
	got, err := ParseDSN("")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got, err = ParseDSN("postgres://u:p@h:1/d?sslmode=prefer&application_name=a&connect_timeout=1&options=")
	if err != nil {
		t.Fatal(err)
	}
	want = ConnectConfig{
		Network: "tcp", Address: "h:1", User: "u", Password: "p", Database: "d", TLSMode: TLSPrefer, Timeout: time.Second,
		Params: append([]Param{{"application_name", "a"}}, all[2:]...),
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(ConnectConfig{}, "TLSConfig")); diff != "" {
		t.Errorf("the string wins (-want +got):\n%s", diff)
	}
}

func TestParseDSNPasswordFile(t *testing.T) {
	home := bareEnv(t)
	file := filepath.Join(home, ".pgpass")
	write := func(mode os.FileMode) {
		t.Helper()
		_ = os.Remove(file)
		text := "# a comment:*:*:*:x\nother:*:*:*:no\nh:5432:shop:app:first\nh:*:*:app:any\\:thing\\\\\n\\*:1:*:*:star\nlocalhost:*:*:sock:socket\n"
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write(0o600)
	for _, tt := range []struct{ dsn, want string }{
		{"host=h user=app dbname=shop", "first"},
		{"host=h user=app dbname=other", `any:thing\`},
		{"host=h user=app dbname=shop password=mine", "mine"},
		{"host=h user=bob", ""},
		{"host=x user=app", ""},
		{"host=tmp port=1 user=bob", ""},
		{"host=/var/run/postgresql user=sock", "socket"},
		{"host=h user=app passfile=/nowhere/pgpass", ""},
	} {
		got, err := ParseDSN(tt.dsn)
		if err != nil || got.Password != tt.want {
			t.Errorf("%s: %q, %v, want %q", tt.dsn, got.Password, err, tt.want)
		}
	}
	write(0o644)
	if _, err := ParseDSN("host=h user=app"); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("password file open to others: %v", err)
	}
	if _, err := ParseDSN("host=h user=bob"); err != nil {
		t.Errorf("password file open to others, of no use here: %v", err)
	}
	t.Setenv("PGPASSFILE", filepath.Join(home, "none"))
	if got, err := ParseDSN("host=h user=app"); err != nil || got.Password != "" {
		t.Errorf("PGPASSFILE: %q, %v", got.Password, err)
	}
}

func TestParseDSNCertificates(t *testing.T) {
	home := bareEnv(t)
	ca := newAuthority(t)
	root := ca.rootFile()
	cert, key := ca.pairFiles(ca.issue("app"))
	parse := func(dsn string) ConnectConfig {
		t.Helper()
		cfg, err := ParseDSN("host=h user=app " + dsn)
		if err != nil {
			t.Fatalf("%s: %v", dsn, err)
		}
		return cfg
	}
	if c := parse("sslmode=require sslrootcert=" + root); c.TLSMode != TLSVerifyCA || c.TLSConfig.RootCAs == nil {
		t.Errorf("require with root certificates: %s, as libpq has it verify-ca", c.TLSMode)
	}
	if c := parse("sslmode=prefer sslrootcert=" + root); c.TLSMode != TLSPrefer {
		t.Errorf("prefer with root certificates: %s", c.TLSMode)
	}
	if c := parse("sslmode=require sslrootcert=/nowhere/root.crt"); c.TLSMode != TLSRequire || c.TLSConfig.RootCAs != nil {
		t.Errorf("require with a missing file: %s", c.TLSMode)
	}
	if c := parse("sslrootcert=system"); c.TLSMode != TLSVerifyFull || c.TLSConfig.RootCAs != nil || c.TLSConfig.ServerName != "h" {
		t.Errorf("system authorities: %s", c.TLSMode)
	}
	c := parse("sslmode=verify-full ssl_min_protocol_version=TLSv1.3 hostaddr=127.0.0.1 sslrootcert=" + root + " sslcert=" + cert + " sslkey=" + key)
	if len(c.TLSConfig.Certificates) != 1 || c.TLSConfig.MinVersion != tls.VersionTLS13 || c.TLSConfig.ServerName != "h" {
		t.Errorf("all together: %+v", c.TLSConfig)
	}
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ParseDSN("host=h user=app sslcert=" + cert + " sslkey=" + key); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("key open to others: %v", err)
	}

	dir := filepath.Join(home, ".postgresql")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(key, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"root.crt": root, "postgresql.crt": cert, "postgresql.key": key} {
		if err := os.Rename(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if c := parse("sslmode=require"); c.TLSMode != TLSVerifyCA || c.TLSConfig.RootCAs == nil || len(c.TLSConfig.Certificates) != 1 {
		t.Errorf("files in ~/.postgresql: %s", c.TLSMode)
	}
}

func FuzzParseDSN(f *testing.F) {
	f.Add("postgres://app:p%40s@[::1]:6000/shop?sslmode=disable&options=-c%20a%3Db")
	f.Add(`host=h user = app password='it\'s' port=1`)
	f.Fuzz(func(t *testing.T, dsn string) {
		if strings.Contains(dsn, "file") || strings.Contains(dsn, "cert") || strings.Contains(dsn, "%") {
			t.Skip("would read files at the fuzzer's choice")
		}
		d := &dsnParser{set: map[string]string{}, getenv: func(string) string { return "" }}
		if cfg, err := d.parse(dsn); err == nil && cfg.Address == "" {
			t.Errorf("%q: no address, no error", dsn)
		}
	})
}

func FuzzSearchPasswords(f *testing.F) {
	f.Add("h:5432:shop:app:secret\n*:*:*:*:a\\:b")
	f.Fuzz(func(t *testing.T, text string) {
		// A first line that matches every connection is used whatever follows it.
		if got, ok := searchPasswords("*:*:*:*:pw\n"+text, "h", "1", "d", "u"); !ok || got != "pw" {
			t.Errorf("%q: %q, %v", text, got, ok)
		}
		_, _ = searchPasswords(text, "h", "1", "d", "u")
	})
}

func TestParseHosts(t *testing.T) {
	bareEnv(t)
	for dsn, want := range map[string]string{
		"host=a,b port=5,6 user=u":                                   "a:5 b:6",
		"host=a,b port=7 user=u target_session_attrs=read-write":     "a:7 b:7 read-write",
		"host=a,b user=u":                                            "a:5432 b:5432",
		"hostaddr=1.2.3.4,::1 port=5 user=u":                         "1.2.3.4:5 [::1]:5",
		"host=x,y hostaddr=1.2.3.4,1.2.3.5 user=u":                   "1.2.3.4:5432 1.2.3.5:5432",
		"host=/run,b user=u":                                         "/run/.s.PGSQL.5432 b:5432",
		"postgres://u@a:5,b:6/d?target_session_attrs=primary":        "a:5 b:6 primary",
		"postgres://u@a,[::1]/d":                                     "a:5432 [::1]:5432",
		"postgres://u@a/d?target_session_attrs=whatever":             "a:5432 whatever",
		"postgres://u@a,b,c:9/d?port=7":                              "a:7 b:7 c:7",
		"postgres://u@/d?host=a,b&port=5,6&target_session_attrs=any": "a:5 b:6 any",
	} {
		hosts, target, err := ParseHosts(dsn)
		got := make([]string, 0, len(hosts)+1)
		for _, h := range hosts {
			got = append(got, h.Address)
			if h.User != "u" {
				t.Errorf("%s: user %q at %s", dsn, h.User, h.Address)
			}
		}
		if target != "" {
			got = append(got, target)
		}
		if s := strings.Join(got, " "); err != nil || s != want {
			t.Errorf("%s: %q, %v, want %q", dsn, s, err, want)
		}
	}
	for dsn, want := range map[string]string{
		"host=a,b port=5,6,7 password=hunter2": "port: 3 values for 2 hosts",
		"host=a hostaddr=1.1.1.1,2.2.2.2":      "host: 1 values for 2 hosts",
		"postgres://u:hunter2@a:5,b:x/":        "port",
		"postgres://u:hunter2@a:5,[::1/":       "IPv6",
		"host=a,b hostaddr=1.2.3.4 port=5":     "hostaddr: 1 values for 2 hosts",
	} {
		if _, _, err := ParseHosts(dsn); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q", dsn, err, want)
		}
	}
}

func TestParseHostsVerifiesEachByItsName(t *testing.T) {
	bareEnv(t)
	hosts, _, err := ParseHosts("host=a,b user=u sslmode=require")
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"a", "b"} {
		if got := hosts[i].TLSConfig.ServerName; got != name {
			t.Errorf("host %s is checked by the name %q", name, got)
		}
	}
}
