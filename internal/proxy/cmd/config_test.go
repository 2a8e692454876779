//go:build linux

package proxycmd

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/proxy/userlist"
	"github.com/weirdb/weir/internal/wire/mywire"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// loadWith loads a configuration from the three sources.
func loadWith(t *testing.T, file string, env, flags map[string]string) proxyConfig {
	t.Helper()
	clitest.ClearEnvironment(t)
	loader := proxyLoader()
	loader.Flags, loader.File, loader.Getenv = flags, file, func(name string) string { return env[name] }
	c, err := loadProxy(loader)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The defaults that the help names must be the proxy's.
func TestDefaultsAreTheProxys(t *testing.T) {
	got := loadWith(t, "", nil, map[string]string{"postgres": "host=db user=app", "mysql": "mysql://app@db"})
	if got.pg.Postgres.Address != "db:5432" || got.pg.Postgres.User != "app" || got.my.MySQL.Address != "db:3306" || got.my.MySQL.User != "app" {
		t.Errorf("servers %v and %v", got.pg.Postgres, got.my.MySQL)
	}
	pg, my := postgres.Defaults(), mysql.Defaults()
	for _, o := range []*session.Options{&pg.Options, &my.Options} {
		o.Log = nil
		o.ReadLanes, o.Loops = 0, 0 // auto: derived from others and from the machine
		o.AutoPool = true           // of the commands; who embeds a proxy gives a number
		o.PoolKeep = 0              // no flag: weir pgbouncer alone sets it
	}
	pg.Postgres, my.MySQL = got.pg.Postgres, got.my.MySQL
	pg.Hosts, my.Hosts = []pgwire.ConnectConfig{pg.Postgres}, []mywire.ConnectConfig{my.MySQL}
	if !reflect.DeepEqual(pg, got.pg) {
		t.Errorf("defaults of the flags\n%+v\ndefaults of the proxy\n%+v", got.pg, pg)
	}
	if !reflect.DeepEqual(my, got.my) {
		t.Errorf("defaults of the flags\n%+v\ndefaults of the proxy for MySQL\n%+v", got.my, my)
	}
}

// Which sides there are follows from the DSNs and, without any, from the
// environment.
func TestSidesByWhatIsGiven(t *testing.T) {
	const pgDSN, myDSN = "host=db user=app", "mysql://app@db"
	for _, tt := range []struct {
		flags, env map[string]string
		pg, my     bool
	}{
		{map[string]string{"postgres": pgDSN}, nil, true, false},
		{map[string]string{"mysql": myDSN}, nil, false, true},
		{map[string]string{"mysql": myDSN, "postgres": pgDSN}, nil, true, true},
		{map[string]string{"mysql": myDSN}, map[string]string{"PGHOST": "db"}, false, true},
		{map[string]string{"postgres": pgDSN}, map[string]string{"MYSQL_HOST": "db"}, true, false},
		{nil, map[string]string{"PGHOST": "db"}, true, false},
		{nil, map[string]string{"MYSQL_HOST": "db"}, false, true},
		{nil, map[string]string{"MYSQL_UNIX_PORT": "/run/s"}, false, true},
		{nil, map[string]string{"PGHOST": "db", "MYSQL_HOST": "db"}, true, true},
		{nil, map[string]string{"WEIR_MYSQL": myDSN}, false, true},
	} {
		c := loadWith(t, "", tt.env, tt.flags)
		if c.pgDSN.wanted != tt.pg || c.myDSN.wanted != tt.my {
			t.Errorf("%v, %v: PostgreSQL %v, MySQL %v", tt.flags, tt.env, c.pgDSN.wanted, c.myDSN.wanted)
		}
		if tt.pg && tt.my && !reflect.DeepEqual(c.pg.Options, c.my.Options) {
			t.Errorf("%v, %v: the sides have different options", tt.flags, tt.env)
		}
	}
}

func TestFlagBeatsEnvironmentBeatsFile(t *testing.T) {
	const file = "testdata/full.yaml" // pool_size: 7
	flag, env := map[string]string{"pool-size": "9"}, map[string]string{"WEIR_POOL_SIZE": "8", "WEIR_BATCH": ""}
	for _, tt := range []struct {
		env, flags map[string]string
		want       int
	}{{nil, nil, 7}, {env, nil, 8}, {nil, flag, 9}, {env, flag, 9}} {
		if c := loadWith(t, file, tt.env, tt.flags); c.shared.PoolSize != tt.want || len(c.shared.Batch) != 3 {
			t.Errorf("environment %v, flags %v: pool size %d, %d rules; want %d and the file's 3", tt.env, tt.flags, c.shared.PoolSize, len(c.shared.Batch), tt.want)
		}
	}
	if c := loadWith(t, file, map[string]string{"WEIR_BATCH": "off"}, nil); c.shared.Batch != nil {
		t.Errorf("WEIR_BATCH=off leaves the file's rules: %v", c.shared.Batch)
	}
}

func TestProxyCommandLines(t *testing.T) { program.Script(t, "testdata/proxy.txt") }

func TestFileHoldsEveryKindOfValue(t *testing.T) {
	c := loadWith(t, "testdata/full.yaml", nil, nil)
	p := c.pg
	if p.Postgres.Address != "db:6000" || p.Postgres.Password != "s:cret" || c.pgDSN.visible {
		t.Errorf("server %v, password visible %v", p.Postgres, c.pgDSN.visible)
	}
	if c.admin != "" || p.QueueTimeout != 90*time.Second || p.LoginTimeout != 90*time.Second || p.MaxMessage != 16<<20 ||
		!p.NoSoloLane || p.NoRowsLane || p.IdleInTransactionTimeout != 0 {
		t.Errorf("read %+v", p)
	}
	if diff := cmp.Diff([]string{"alice", "bob"}, p.AdminUsers); diff != "" {
		t.Error(diff)
	}
	for _, tt := range []struct {
		database, user   string
		size, ofDatabase int
		queue            time.Duration
	}{{"shop", "app", 30, 60, 90 * time.Second}, {"shop", "importer", 4, 60, 10 * time.Minute}, {"x", "y", 7, 0, 90 * time.Second}} {
		if l := p.LimitsOf(tt.database, tt.user); l.PoolSize != tt.size || p.LimitsOfDatabase(tt.database).MaxDBConnections != tt.ofDatabase || l.QueueTimeout != tt.queue {
			t.Errorf("limits of %s in %s: %+v", tt.user, tt.database, l)
		}
	}
	want := []session.BatchRule{{Database: "metrics", Batch: true}, {User: "importer", Batch: true, Window: 2 * time.Millisecond}, {}}
	if diff := cmp.Diff(want, p.Batch); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}

// The examples that people copy must work.
func TestExamplesAreValid(t *testing.T) {
	docs, err := os.ReadFile("../../../docs/proxy.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("../../../contrib/weir.yaml")
	if err != nil {
		t.Fatal(err)
	}
	texts := []string{string(example)}
	for _, block := range strings.Split(string(docs), "```yaml\n")[1:] {
		text, _, _ := strings.Cut(block, "```")
		texts = append(texts, text)
	}
	if len(texts) < 3 {
		t.Errorf("found %d examples", len(texts))
	}
	for _, text := range texts {
		if _, err := proxyLoader().Check("example.yaml", []byte(text)); err != nil {
			t.Errorf("%v, in\n%s", err, text)
		}
	}
}

func TestPasswordOnTheCommandLineIsSeen(t *testing.T) {
	for _, tt := range []struct {
		flag, env string
		want      bool
	}{
		{"postgres://app:se%20cret@db/x", "", true},
		{"host=db user=app password=secret", "", true},
		{"postgres://app@db/x", "", false},
		{"", "postgres://app:secret@db/x", false},
	} {
		flags := map[string]string{}
		if tt.flag != "" {
			flags["postgres"] = tt.flag
		}
		if got := loadWith(t, "", map[string]string{"WEIR_POSTGRES": tt.env}, flags).pgDSN.visible; got != tt.want {
			t.Errorf("flag %q, environment %q: visible %v, want %v", tt.flag, tt.env, got, tt.want)
		}
	}
	clitest.ClearEnvironment(t)
	t.Setenv("PGPASSWORD", "secret")
	loader := proxyLoader()
	loader.Flags = map[string]string{"postgres": "host=db user=app"}
	c, err := loadProxy(loader)
	if err != nil || c.pg.Postgres.Password != "secret" || c.pgDSN.visible {
		t.Errorf("PGPASSWORD: %v, password known %v, visible %v", err, c.pg.Postgres.Password != "", c.pgDSN.visible)
	}
}

func FuzzConfigFile(f *testing.F) {
	for _, name := range []string{"full.yaml", "bad-keys.yaml", "bad-batch.yaml", "two-documents.yaml"} {
		text, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("a: &a [*a]\nbatch: *a"))
	f.Fuzz(func(t *testing.T, text []byte) {
		loader := proxyLoader()
		found, err := loader.Check("weir.yaml", text)
		if err != nil {
			for line := range strings.Lines(err.Error()) {
				if !strings.HasPrefix(line, "weir.yaml:") {
					t.Errorf("mistake without its place: %q", line)
				}
			}
			return
		}
		for name, given := range found {
			known := slices.ContainsFunc(loader.Options, func(o cli.Option[proxyConfig]) bool { return o.Name == name })
			if !known || !strings.HasPrefix(given.Source, "weir.yaml:") {
				t.Errorf("found %q from %q", name, given.Source)
			}
		}
	})
}

// The reference in docs/proxy.md is written by this test with -update, and
// otherwise held against the flags.
func TestProxyReference(t *testing.T) {
	clitest.Reference(t, "../../../docs/proxy.md", proxyReference())
}

func proxyReference() string {
	var b strings.Builder
	for _, group := range proxyGroups {
		fmt.Fprintf(&b, "\n### %s\n\n| Flag | Default | Meaning |\n|---|---|---|\n", group)
		for _, o := range proxyOptions() {
			if o.Group != group {
				continue
			}
			flag, def := "--"+o.Name, o.Default
			if o.Arg != "" {
				flag += " " + o.Arg
			}
			if !o.Reload {
				o.Help += " *(at the start only)*"
			}
			escape := strings.NewReplacer("|", `\|`).Replace
			if def != "" {
				def = "`" + def + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", escape(flag), def, escape(o.Help))
		}
	}
	return b.String() + "\n"
}

// Of several hosts the one that takes writes is wanted, unless the string says another.
func TestHostsOfTheConnectionStrings(t *testing.T) {
	for _, tt := range []struct {
		postgres, mysql string
		pg, my          upstream.Target
		hosts           int
	}{
		{"host=a user=u", "mysql://u@a", upstream.TargetAny, upstream.TargetAny, 1},
		{"host=a,b user=u", "mysql://u@a,b", upstream.TargetReadWrite, upstream.TargetReadWrite, 2},
		{"host=a,b user=u target_session_attrs=any", "mysql://u@a,b/?target_session_attrs=standby", upstream.TargetAny, upstream.TargetStandby, 2},
	} {
		got := loadWith(t, "", nil, map[string]string{"postgres": tt.postgres, "mysql": tt.mysql})
		if got.pg.Target != tt.pg || got.my.Target != tt.my || len(got.pg.Hosts) != tt.hosts || len(got.my.Hosts) != tt.hosts {
			t.Errorf("%s, %s: %v of %d hosts, %v of %d", tt.postgres, tt.mysql, got.pg.Target, len(got.pg.Hosts), got.my.Target, len(got.my.Hosts))
		}
	}
	if got := loadWith(t, "", nil, map[string]string{"postgres": "host=a user=u", "patroni": "http://a:8008, http://b:8008"}); got.pg.Target != upstream.TargetReadWrite || len(got.pg.Patroni) != 2 {
		t.Errorf("with Patroni: %v, %v", got.pg.Target, got.pg.Patroni)
	}
}

// TestProxyIsNotItsOwnServer: it would connect to itself until it has no more sockets.
func TestProxyIsNotItsOwnServer(t *testing.T) {
	for listener, servers := range map[string]map[string]bool{
		"127.0.0.1:6432": {"127.0.0.1:6432": true, "localhost:6432": true, "127.0.0.1:5432": false, "127.0.0.2:6432": false, "db:6432": false, "[::1]:6432": false, "/run/weir/.s.PGSQL.6432": false},
		":6432":          {"127.0.0.1:6432": true, "[::1]:6432": true, "localhost:6432": true, "db:6432": false},
		"db:6432":        {"db:6432": true, "127.0.0.1:6432": false},
		"127.0.0.1:0":    {"127.0.0.1:0": false},
		"/run/weir":      {"127.0.0.1:6432": false},
	} {
		for server, want := range servers {
			if got := isSelf(server, listener); got != want {
				t.Errorf("server %s, listener %s: %v", server, listener, got)
			}
		}
	}
	program.Refuse(t, cli.ExitUsage, []string{"--postgres: at 127.0.0.1:6432 weir itself is to listen"}, "proxy", "--postgres", "postgres://app@127.0.0.1:6432/app")
	program.Refuse(t, cli.ExitUsage, []string{"--mysql: at 127.0.0.1:3307 weir itself is to listen"}, "proxy", "--mysql", "mysql://app@127.0.0.1:3307/app")
}

func TestLDAPPasswordOnTheCommandLineIsSeen(t *testing.T) {
	const with, without = `ldapserver=a ldapbasedn="dc=a" ldapbinddn="cn=b" ldapbindpasswd=secret`, `ldapserver=a ldapbasedn="dc=a"`
	for _, tt := range []struct {
		flag, env string
		want      bool
	}{
		{with, "", true},
		{without, "", false},
		{"", with, false},
	} {
		flags := map[string]string{"postgres": "postgres://app@db/x"}
		if tt.flag != "" {
			flags["ldap"] = tt.flag
		}
		c := loadWith(t, "", map[string]string{"WEIR_LDAP": tt.env}, flags)
		if c.pg.LDAP == nil || c.ldap.visible != tt.want {
			t.Errorf("flag %q, environment %q: visible %v, want %v", tt.flag, tt.env, c.ldap.visible, tt.want)
		}
	}
}

func TestParseMySQLUserList(t *testing.T) {
	native, sha2 := mywire.NewNativeSecret("pw"), mywire.NewSHA2Secret("pw")
	text := fmt.Sprintf("\"a\" \"pass\"\n\"b\" \"%s\"\n\"c\" \"0x%X\"\n\"d\" \"\"\n\"e\" \"0xfeed\"\n", native, sha2)
	users, err := userlist.Parse(text, mysqlUser)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, u := range users {
		plain, _ := u.Secret.Plain()
		got = append(got, u.Name+": "+u.Secret.String()+" "+plain)
	}
	want := []string{
		"a: plain password pass", "b: mysql_native_password hash ", "c: caching_sha2_password hash ", "d: no secret ",
		"e: plain password 0xfeed",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("users (-want +got):\n%s", diff)
	}
	if _, err := userlist.Parse(`"a" "$A$005$hush"`, mysqlUser); err == nil || strings.Contains(err.Error(), "hush") || !strings.HasPrefix(err.Error(), "1: ") {
		t.Errorf("a broken hash: %v", err)
	}
}
