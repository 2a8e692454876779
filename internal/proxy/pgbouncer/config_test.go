package pgbouncer

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// files reads what is included from a map.
func files(m map[string]string) func(string) (string, error) {
	return func(name string) (string, error) {
		text, ok := m[name]
		if !ok {
			return "", os.ErrNotExist
		}
		return text, nil
	}
}

func mustParse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := parse("a.ini", text, files(nil))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestDatabases(t *testing.T) {
	c := mustParse(t, `
; comment
[databases]
plain =
redirected = host=db.example.com port=5433 dbname=real user=app password='it''s = "x"' pool_size=3
'odd name' = host=127.0.0.1,/run/pg load_balance_hosts=disable connect_query='SET a = 1' datestyle=ISO pool_mode=statement
* = host=all.example.com reserve_pool=2
[pgbouncer]
[databases]
plain = host=later query_wait_timeout=1.5
`)
	d := c.Databases["redirected"]
	if d.Hosts[0] != "db.example.com" || d.Port != 5433 || d.DBName != "real" || d.User != "app" || d.Password != `it's = "x"` || d.PoolSize != 3 || d.MinPoolSize != -1 {
		t.Errorf("redirected: %+v", d)
	}
	d = c.Databases["odd name"]
	if !slices.Equal(d.Hosts, []string{"127.0.0.1", "/run/pg"}) || d.RoundRobin || d.ConnectQuery != "SET a = 1" || d.Mode != "statement" || d.Params[0] != [2]string{"datestyle", "ISO"} {
		t.Errorf("odd name: %+v", d)
	}
	if d = c.Databases["plain"]; d.Hosts[0] != "later" || d.QueryWaitTimeout != 1500*time.Millisecond {
		t.Errorf("the later line does not count: %+v", d)
	}
	d, ok := c.Database("any")
	if !ok || d.Name != "any" || d.DBName != "" || d.ReservePoolSize != 2 || d.Hosts[0] != "all.example.com" {
		t.Errorf("*: %+v", d)
	}
}

func TestAddress(t *testing.T) {
	for _, x := range [][2]string{
		{"db", "db:5432"}, {"::1", "[::1]:5432"}, {"/run/pg", "/run/pg/.s.PGSQL.5432"}, {"", "/tmp/.s.PGSQL.5432"},
	} {
		if got := Address(x[0], 5432); got != x[1] {
			t.Errorf("%q: %q, want %q", x[0], got, x[1])
		}
	}
}

func TestUsersAndPeers(t *testing.T) {
	c := mustParse(t, "[users]\na = pool_size=5 max_user_connections = 7 pool_mode=session query_timeout=3\nb =\n[peers]\n2 = host=/tmp port=7000\n")
	if u := c.Users["a"]; u.PoolSize != 5 || u.MaxConnections != 7 || u.Mode != "session" || u.QueryTimeout != 3*time.Second || u.MaxClients != -1 {
		t.Errorf("a: %+v", u)
	}
	if c.Users["b"] == nil || c.Peers[2] != (Peer{2, "/tmp", 7000}) {
		t.Errorf("b %v, peers %v", c.Users["b"], c.Peers)
	}
}

// Settings that weir does not support, or does not know, are refused with line, setting and what
// to do.
func TestRefused(t *testing.T) {
	for _, x := range []struct{ text, want string }{
		{"[pgbouncer]\nauth_type = pam", "a.ini:2: auth_type: weir has no pam: use"},
		{"[pgbouncer]\nauth_type = ldap", "auth_ldap_options: no LDAP server"},
		{"[pgbouncer]\nauth_type = ldap\nauth_ldap_options = ldapserver=x ldaptls=yes", "a.ini:3: auth_ldap_options: ldaptls: want 0 or 1"},
		{"[pgbouncer]\nsyslog = 1", "a.ini:2: syslog: weir does not write to syslog: use logfile"},
		{"[pgbouncer]\ndisable_pqexec=1", "a.ini:2: disable_pqexec: weir does not refuse simple queries: set it to 0"},
		{"[pgbouncer]\nuser = postgres", "a.ini:2: user: weir does not change the user"},
		{"[pgbouncer]\nclient_tls_ciphers = HIGH", "a.ini:2: client_tls_ciphers: weir takes Go's choice"},
		{"[pgbouncer]\nclient_tls13_ciphers = TLS_X", "failed to set the TLSv1.3 cipher suites"},
		{"[pgbouncer]\nserver_tls_protocols = tlsv1.0 tlsv1.3", "a.ini:2: server_tls_protocols: weir speaks all versions between"},
		{"[pgbouncer]\nserver_tls_protocols = ssl3", `a.ini:2: server_tls_protocols: "ssl3": want all`},
		{"[pgbouncer]\nserver_lifetime = soon", "a.ini:2: server_lifetime: want a number of seconds"},
		{"[pgbouncer]\ndefault_pool_size = many", "a.ini:2: default_pool_size: want a whole number"},
		{"[pgbouncer]\npool_mode = auto", "a.ini:2: pool_mode: want session, transaction, statement"},
		{"[pgbouncer]\nnever_heard = 1", "a.ini:2: never_heard: PgBouncer has no such setting"},
		{"[pgbouncer]\nauth_dbname = pgbouncer", `a.ini:2: auth_dbname: cannot use the reserved "pgbouncer" database`},
		{"[databases]\npgbouncer = host=x", "a.ini:2: pgbouncer: database name \"pgbouncer\" is reserved"},
		{"[databases]\na = hots=x", "a.ini:2: a: hots: unrecognized connection parameter"},
		{"[databases]\na = host= port=1 port", "a.ini:2: a: want key=value pairs"},
		{"[databases]\na = password='x", "a.ini:2: a: want key=value pairs"},
		{"[databases]\na = port=0", "a.ini:2: a: port: want a port"},
		{"[databases]\na = host=''", "a.ini:2: a: host has no value"},
		{"[users]\na = speed=1", "a.ini:2: a: speed: unrecognized user parameter"},
		{"[peers]\n0 = host=x", "a.ini:2: 0: the id of a peer"},
		{"[peers]\n1 = port=3", "a.ini:2: 1: host was not provided"},
		{"[what]\na = 1", "a.ini:2: a: section [what] is unknown"},
		{"a = 1", "a.ini:1: a: it stands before the first section"},
		{"[pgbouncer]\nno equals", "a.ini:2: syntax error"},
		{"[pgbouncer", "a.ini:1: syntax error"},
		{"%include gone.ini", "a.ini:1: include: file does not exist"},
	} {
		_, err := parse("a.ini", x.text, files(nil))
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%q: %v, want %q", x.text, err, x.want)
		}
	}
}

// All mistakes are told at once.
func TestAllMistakes(t *testing.T) {
	_, err := parse("a.ini", "[pgbouncer]\nsyslog=1\nverbose=x\n", files(nil))
	if err == nil || strings.Count(err.Error(), "a.ini:") != 2 {
		t.Errorf("%v", err)
	}
}

func TestInclude(t *testing.T) {
	read := files(map[string]string{
		"b.ini":    "max_client_conn = 7\n[databases]\nx = host=h",
		"loop.ini": "%include loop.ini",
	})
	c, err := parse("a.ini", "[pgbouncer]\n%include b.ini\ny = host=h2\n", read)
	if err != nil {
		t.Fatal(err)
	}
	if c.Number("max_client_conn") != 7 || c.Databases["x"] == nil || c.Databases["y"] == nil {
		t.Errorf("%d %v: an included file begins in the section of the line, and leaves its own", c.Number("max_client_conn"), c.Databases)
	}
	if _, err := parse("a.ini", "%include loop.ini", read); err == nil || !strings.Contains(err.Error(), "more than 10 deep") {
		t.Errorf("loop: %v", err)
	}
}

// Every setting has a default that it takes itself, and says what becomes of it.
func TestSettings(t *testing.T) {
	seen := make(map[string]bool)
	for i := range settings {
		s := &settings[i]
		if seen[s.name] {
			t.Errorf("%s is there twice", s.name)
		}
		seen[s.name] = true
		if s.def != "" {
			if err := s.check(s.def); err != nil {
				t.Errorf("%s: its default is refused: %v", s.name, err)
			}
		}
	}
	c := mustParse(t, "[pgbouncer]\npkt_buf = 8192\nlog_stats=0\npool_mode=session\n")
	if len(c.Notes) != 2 || c.Notes[0].Setting != "log_stats" || c.Notes[1].Setting != "pkt_buf" || c.Notes[1].Line != 2 {
		t.Errorf("notes: %+v", c.Notes)
	}
	if c.Number("unix_socket_mode") != 0o777 || c.Time("query_wait_timeout") != 2*time.Minute || c.On("syslog") || c.Text("auth_type") != "md5" {
		t.Error("defaults")
	}
}

// SET changes what may change while the process runs, and RELOAD takes back what has a
// default.
func TestSetAndReread(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.ini")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("[pgbouncer]\nlisten_port = 1234\nmax_client_conn = 5\n")
	c, err := Read(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range [][2]string{{"max_client_conn", "9"}, {"query_timeout", "2"}, {"auth_user", "x"}, {"listen_port", "1"}} {
		if c, err = c.With(x[0], x[1]); err != nil {
			t.Fatal(err)
		}
	}
	if c.Number("max_client_conn") != 9 || c.Number("listen_port") != 1234 || c.Text("auth_user") != "x" {
		t.Errorf("after SET: %v", c.values)
	}
	if _, err := c.With("auth_type", "pam"); err == nil {
		t.Error("SET auth_type = pam")
	}
	write("[pgbouncer]\nlisten_port = 99\nmax_client_conn = 6\n")
	if c, err = c.Reread(); err != nil {
		t.Fatal(err)
	}
	if c.Number("max_client_conn") != 6 || c.Time("query_timeout") != 0 || c.Text("auth_user") != "x" || c.Number("listen_port") != 1234 {
		t.Errorf("after RELOAD: %v", c.values)
	}
	write("[pgbouncer]\nmax_client_conn = x\n")
	if _, err := c.Reread(); err == nil {
		t.Error("a mistake is taken")
	}
}

func TestProtocols(t *testing.T) {
	for _, x := range []struct {
		text string
		want TLSRange
	}{
		{"secure", TLSRange{0x303, 0x304}},
		{"all", TLSRange{0x301, 0x304}},
		{"tlsv1.3", TLSRange{0x304, 0x304}},
		{"tlsv1.1,tlsv1.2", TLSRange{0x302, 0x303}},
		{"all:!tlsv1.0", TLSRange{0x302, 0x304}},
	} {
		if got, err := parseProtocols(x.text); err != nil || got != x.want {
			t.Errorf("%s: %x, %v", x.text, got, err)
		}
	}
}

func TestHBA(t *testing.T) {
	maps, err := parseIdent("i", "# map\nm  unixname  app\nm \"other one\" all\nm2 x \"all\"\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name, system, user string
		want               bool
	}{
		{"m", "unixname", "app", true},
		{"m", "unixname", "b", false},
		{"m", "other one", "anybody", true},
		{"m2", "x", "anybody", false},
		{"m2", "x", "all", true},
		{"gone", "x", "x", false},
	} {
		if got := maps.Allows(x.name, x.system, x.user); got != x.want {
			t.Errorf("%+v: %v", x, got)
		}
	}
	h, err := parseHBA("h", `
local all peeruser peer map=m
local sock all md5   # a comment
hostssl tls all 10.0.0.0/8 cert
hostnossl plain "all" 0.0.0.0/0 password
host d1, d2,"d,3" u1 192.168.1.0 255.255.255.0 scram-sha-256
host sameuser all 127.0.0.1/32 trust
host replication rep 127.0.0.1/32 trust
host all all ::1/128 md5
host all bad all reject
`, maps)
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr
	for _, x := range []struct {
		login Login
		line  int
	}{
		{Login{Database: "x", User: "peeruser"}, 2},
		{Login{Database: "sock", User: "x"}, 3},
		{Login{Database: "x", User: "x"}, 0},
		{Login{Addr: addr("10.1.1.1"), TLS: true, Database: "tls", User: "x"}, 4},
		{Login{Addr: addr("10.1.1.1"), Database: "tls", User: "x"}, 0},
		{Login{Addr: addr("9.1.1.1"), Database: "plain", User: "all"}, 5},
		{Login{Addr: addr("9.1.1.1"), Database: "plain", User: "x"}, 0},
		{Login{Addr: addr("9.1.1.1"), TLS: true, Database: "plain", User: "all"}, 0},
		{Login{Addr: addr("192.168.1.9"), Database: "d,3", User: "u1"}, 6},
		{Login{Addr: addr("::ffff:192.168.1.9"), Database: "d2", User: "u1"}, 6},
		{Login{Addr: addr("192.168.2.9"), Database: "d2", User: "u1"}, 0},
		{Login{Addr: addr("127.0.0.1"), Database: "me", User: "me"}, 7},
		{Login{Addr: addr("127.0.0.1"), Database: "me", User: "rep", Physical: true}, 8},
		{Login{Addr: addr("127.0.0.1"), Database: "rep2", User: "rep"}, 0},
		{Login{Addr: addr("::1"), Database: "x", User: "x"}, 9},
		{Login{Addr: addr("8.8.8.8"), Database: "x", User: "bad"}, 10},
	} {
		line := 0
		if r := h.Match(x.login); r != nil {
			line = r.Line
		}
		if line != x.line {
			t.Errorf("%+v: line %d, want %d", x.login, line, x.line)
		}
	}
}

func TestHBAOfLDAP(t *testing.T) {
	h, err := parseHBA("h", `host all all all ldap ldapserver=a ldapprefix="uid=#" ldapsuffix=",dc=x" # of all`+"\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	if r := h.Rules[0]; r.Method != "ldap" || r.LDAP == nil || r.LDAP.Prefix != "uid=#" || r.LDAP.Suffix != ",dc=x" {
		t.Errorf("%+v", r)
	}
}

// A line that cannot be read may be the one that rejects: it is never left out.
func TestHBARefused(t *testing.T) {
	for _, x := range []struct{ line, want string }{
		{"host all all 1.2.3.4/32 pam", `h:1: method "pam"`},
		{"host all all 1.2.3.4/32 ldap", "h:1: no LDAP server"},
		{"host all all all ldap ldapserver=a ldapprefix=x map=m", "h:1: an option that LDAP does not have"},
		{"host all all 1.2.3.4 md5", "h:1: mask"},
		{"host all all 1.2.3.4 255.0.255.0 md5", "its bits are not together"},
		{"host all all name.example.com md5", "h:1: address"},
		{"host all +group all md5", "members of roles"},
		{"host samerole all all md5", "members of roles"},
		{"host all all all md5 clientcert=1", `option "clientcert=1": want map=NAME`},
		{"local all all peer map=gone", `map "gone" is not in auth_ident_file`},
		{"local all all md5 map=m x", "one word too many"},
		{"local all", "users: a name is missing"},
		{"local all all", "the method is missing"},
		{"remote all all md5", `"remote": want local`},
		{`local "all all md5`, "a quotation mark is not closed"},
		{"local @gone all md5", "no such file"},
	} {
		_, err := parseHBA("h", x.line, IdentMaps{"m": {{}}})
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%q: %v, want %q", x.line, err, x.want)
		}
	}
}

func TestHBANameFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "names"), []byte("a, b\n# none\n\"c d\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h, err := parseHBA(filepath.Join(dir, "hba"), "local @names all trust", nil)
	if err != nil || !slices.Equal(h.Rules[0].DBs.List, []string{"a", "b", "c d"}) {
		t.Errorf("%+v, %v", h, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("[databases]\na = host=x port=5432 password='a''b'\n* =\n[users]\nu = pool_size=1\n[pgbouncer]\nauth_type=hba\n%include b\n")
	f.Add("[peers]\n1=host=x\n'q' = \n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parse("f.ini", text, files(nil))
		if err != nil {
			if !strings.Contains(err.Error(), ":") {
				t.Errorf("%q: the error names no place: %v", text, err)
			}
			return
		}
		c.Show(func(name, value, _ string, _ bool) {
			if err := find(name).check(value); err != nil && value != "" {
				t.Errorf("%s has value %q: %v", name, value, err)
			}
		})
		for name, d := range c.Databases {
			if len(d.Hosts) == 0 || d.Port < 1 || name == "pgbouncer" {
				t.Errorf("%q: %+v", name, d)
			}
		}
	})
}

func FuzzHBA(f *testing.F) {
	f.Add("local all all md5\nhost \"a\"\"b\" x,y 10.0.0.0/8 trust # c\nhost all all ::1 ffff:: reject", "db", "user")
	f.Fuzz(func(t *testing.T, text, db, user string) {
		h, err := parseHBA("h", text, nil)
		if err != nil {
			return
		}
		for _, l := range []Login{{Database: db, User: user}, {Addr: netip.MustParseAddr("10.1.2.3"), TLS: true, Database: db, User: user}} {
			if r := h.Match(l); r != nil && (r.Kind == "local") == l.Addr.IsValid() {
				t.Errorf("%+v matches %+v", l, r)
			}
		}
		for _, r := range h.Rules {
			if !slices.Contains([]string{"trust", "reject", "md5", "plain", "peer", "cert", "scram-sha-256"}, r.Method) {
				t.Error(fmt.Sprint(r))
			}
		}
	})
}
