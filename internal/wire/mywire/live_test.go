package mywire

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// target is one of the servers that the tests of this package share.
type target struct {
	*lab.MySQL
	ca string
}

func (s target) config(user, password string) ConnectConfig {
	return ConnectConfig{Address: s.Addr(), User: user, Password: password}
}

// users are made on every server, by their plugin's name, with the password
// "pw of NAME".
const livePassword = "pw of "

// The servers are started when a test first needs them, and live until the last
// test has ended.
var shared = struct {
	mu   sync.Mutex
	live map[lab.Flavor]target
}{live: map[lab.Flavor]target{}}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, s := range shared.live {
		if err := s.Discard(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// eachServer runs f with MariaDB, and with MySQL where it is installed. The
// servers offer TLS and do not demand it.
func eachServer(t *testing.T, f func(t *testing.T, s target)) {
	t.Run("mariadb", func(t *testing.T) { f(t, server(t, lab.FlavorMariaDB)) })
	t.Run("mysql", func(t *testing.T) { f(t, server(t, lab.FlavorMySQL)) })
}

func server(t *testing.T, flavor lab.Flavor) target {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if s, ok := shared.live[flavor]; ok {
		return s
	}
	begin := lab.StartMariaDB
	if flavor == lab.FlavorMySQL {
		labtest.RequireMySQL(t)
		begin = lab.StartMySQL
	} else {
		labtest.RequireMariaDB(t)
	}
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	m, err := begin(ctx, lab.MySQLConfig{Durability: lab.Fast, Light: true, TLS: lab.TLSOptional})
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, m)
	shared.live[flavor] = s
	return s
}

func start(t *testing.T, m *lab.MySQL) target {
	t.Helper()
	for _, plugin := range spoken(m) {
		user := lab.MySQLUser{Name: plugin, Password: livePassword + plugin, Plugin: plugin}
		if strings.HasSuffix(plugin, "socket") {
			user.Name, user.Password = "nobody", ""
		}
		if err := m.CreateUser(t.Context(), user); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Exec(t.Context(), "CREATE DATABASE IF NOT EXISTS weir"); err != nil {
		t.Fatal(err)
	}
	return target{m, m.CACert()}
}

// spoken lists the server's plugins, its default first, without those that neither
// Connect nor go-sql-driver speaks: MariaDB's parsec. TestRelayOfParsec is about
// that one.
func spoken(m *lab.MySQL) []string {
	return slices.DeleteFunc(m.AuthPlugins(), func(plugin string) bool { return plugin == pluginParsec })
}

const (
	pluginParsec = "parsec"
	// accessDeniedNoPassword is the refusal by a plugin that asks for no password.
	accessDeniedNoPassword = 1698
)

// one returns the single value that a query yields.
func one(t *testing.T, s *Server, query string) string {
	t.Helper()
	rows, err := s.Query(t.Context(), query)
	if err != nil {
		t.Fatalf("%.100s: %v", query, err)
	}
	if len(rows) != 1 || len(rows[0]) != 1 {
		t.Fatalf("%.100s: %v, want one value", query, rows)
	}
	return rows[0][0].String
}

func TestConnectByEachPluginAndTransport(t *testing.T) {
	eachServer(t, func(t *testing.T, s target) {
		for _, plugin := range spoken(s.MySQL) {
			if strings.HasSuffix(plugin, "socket") {
				continue
			}
			for _, transport := range []string{"DISABLED", "PREFERRED", "REQUIRED", "unix"} {
				t.Run(plugin+"/"+transport, func(t *testing.T) {
					cfg := s.config(plugin, livePassword+plugin)
					cfg.Database = "weir"
					if transport == "unix" {
						cfg.Address = s.Socket()
					} else {
						cfg.TLSMode = TLSMode(transport)
					}
					// Twice, since caching_sha2_password has another path when
					// the server knows the password.
					for range 2 {
						connectAndCheck(t, cfg, transport)
					}
					cfg.Password += "x"
					if _, err := Connect(t.Context(), cfg); CodeOf(err) != ErrAccessDenied {
						t.Errorf("wrong password: %v", err)
					}
				})
			}
		}
	})
}

func connectAndCheck(t *testing.T, cfg ConnectConfig, transport string) {
	t.Helper()
	c, err := Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := one(t, c, "SELECT DATABASE()"); got != "weir" {
		t.Errorf("database %q", got)
	}
	if got, _, _ := strings.Cut(one(t, c, "SELECT USER()"), "@"); got != cfg.User {
		t.Errorf("user %q", got)
	}
	if got := one(t, c, "SELECT CONNECTION_ID()"); got != fmt.Sprint(c.Greeting.ConnectionID) {
		t.Errorf("connection id %q, greeting has %d", got, c.Greeting.ConnectionID)
	}
	if want := transport == "PREFERRED" || transport == "REQUIRED"; c.TLS != want {
		t.Errorf("TLS %t", c.TLS)
	}
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestConnectErrors(t *testing.T) {
	eachServer(t, func(t *testing.T, s target) {
		plugin := s.AuthPlugins()[0]
		good := s.config(plugin, livePassword+plugin)
		for _, c := range []struct {
			name  string
			spoil func(*ConnectConfig)
			code  uint16
			text  string
		}{
			{"unknown database", func(c *ConnectConfig) { c.Database = "nowhere" }, ErrUnknownDatabase, "nowhere"},
			{"unknown user", func(c *ConnectConfig) { c.User = "nemo" }, ErrAccessDenied, "nemo"},
			{"no password", func(c *ConnectConfig) { c.Password = "" }, ErrAccessDenied, "password: NO"},
			{"nobody listens", func(c *ConnectConfig) { c.Address = "127.0.0.1:1" }, 0, "refused"},
			{"no TLS there", func(c *ConnectConfig) { c.TLSMode = TLSVerifyIdentity }, 0, "certificate"},
			{"NUL", func(c *ConnectConfig) { c.Database = "a\x00b" }, 0, "NUL"},
			{"old hash only", func(c *ConnectConfig) { c.Keys = &ClientKeys{}; c.Password = "" }, 0, "hash"},
		} {
			t.Run(c.name, func(t *testing.T) {
				cfg := good
				c.spoil(&cfg)
				_, err := Connect(t.Context(), cfg)
				code := CodeOf(err)
				if cfg.User == "nemo" && s.Flavor() == lab.FlavorMariaDB && code == accessDeniedNoPassword {
					// MariaDB plays the login of a user that it does not know by the plugin
					// of some account that it has, here unix_socket.
					code = ErrAccessDenied
				}
				if err == nil || code != c.code || !strings.Contains(err.Error(), c.text) {
					t.Errorf("%v, want code %d and %q", err, c.code, c.text)
				}
				if err != nil && strings.Contains(err.Error(), livePassword) {
					t.Errorf("the error quotes the password: %v", err)
				}
			})
		}
	})
}

func TestConnectVerifiesTheServer(t *testing.T) {
	eachServer(t, func(t *testing.T, s target) {
		plugin := s.AuthPlugins()[0]
		dsn := func(params string) ConnectConfig {
			t.Helper()
			cfg, err := ParseDSN(fmt.Sprintf("mysql://%s:%s@%s/weir?%s", plugin, strings.ReplaceAll(livePassword+plugin, " ", "%20"), s.Addr(), params))
			if err != nil {
				t.Fatal(err)
			}
			return cfg
		}
		for _, params := range []string{"ssl-mode=VERIFY_IDENTITY&ssl-ca=" + s.ca, "tls=true&ssl-ca=" + s.ca, "ssl-ca=" + s.ca} {
			c, err := Connect(t.Context(), dsn(params))
			if err != nil {
				t.Errorf("%s: %v", params, err)
				continue
			}
			if !c.TLS {
				t.Errorf("%s: no TLS", params)
			}
			_ = c.Close()
		}
		other := newAuthority(t).rootFile()
		for _, mode := range []string{"VERIFY_CA", "VERIFY_IDENTITY"} {
			if _, err := Connect(t.Context(), dsn("ssl-mode="+mode+"&ssl-ca="+other)); err == nil || !strings.Contains(err.Error(), "certificate") {
				t.Errorf("%s with another authority: %v", mode, err)
			}
		}
	})
}

func TestConnectTooManyConnections(t *testing.T) {
	m := labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, Light: true, MaxConnections: 10})
	cfg := ConnectConfig{Address: m.Addr(), User: "root"}
	for range 20 {
		c, err := Connect(t.Context(), cfg)
		if err != nil {
			if CodeOf(err) != ErrTooManyConnections {
				t.Fatalf("%v, want %d", err, ErrTooManyConnections)
			}
			return
		}
		defer c.Close()
	}
	t.Error("20 connections to a server that allows 10")
}

func TestConnectIsInterrupted(t *testing.T) {
	silent := listen(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("changed my mind")
	var wg sync.WaitGroup
	wg.Go(func() {
		conn, err := silent.Accept()
		if err == nil {
			defer conn.Close()
		}
		cancel(reason)
		<-t.Context().Done()
	})
	if _, err := Connect(ctx, ConnectConfig{Address: silent.Addr().String(), User: "u"}); !errors.Is(err, reason) {
		t.Errorf("%v, want %v", err, reason)
	}
}

func TestQuery(t *testing.T) {
	eachServer(t, func(t *testing.T, s target) {
		plugin := s.AuthPlugins()[0]
		for _, caps := range []Caps{WantedCaps, WantedCaps &^ CapDeprecateEOF, WantedCaps &^ (CapSessionTrack | CapDeprecateEOF), WantedCaps | CapsMariaDB | CapQueryAttributes} {
			cfg := s.config(plugin, livePassword+plugin)
			cfg.Caps = caps
			c, err := Connect(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			rows, err := c.Query(t.Context(), "SELECT 1 AS a, NULL AS b UNION ALL SELECT 2, 'x' ORDER BY 1")
			if err != nil || fmt.Sprint(rows) != "[[{1 true} { false}] [{2 true} {x true}]]" {
				t.Errorf("%#x: %v, %v", caps, rows, err)
			}
			if rows, err := c.Query(t.Context(), "SELECT 1; SELECT 3"); err != nil || fmt.Sprint(rows) != "[[{3 true}]]" {
				t.Errorf("%#x: %v, %v", caps, rows, err)
			}
			if _, err := c.Query(t.Context(), "SELECT nonsense"); CodeOf(err) != 1054 {
				t.Errorf("%#x: %v", caps, err)
			}
			big := one(t, c, "SELECT REPEAT('x', 100000)")
			if len(big) != 100000 {
				t.Errorf("%d bytes", len(big))
			}
			ok, err := c.Exec(t.Context(), "USE weir")
			if err != nil || (caps.Has(CapSessionTrack) && len(ok.State) == 0) {
				t.Errorf("%#x: %+v, %v", caps, ok, err)
			}
			_ = c.Close()
		}
	})
}

func TestConnectByWhatALoginRevealed(t *testing.T) {
	eachServer(t, func(t *testing.T, s target) {
		for _, plugin := range spoken(s.MySQL) {
			keys := &ClientKeys{}
			switch plugin {
			case PluginNative:
				keys.Native, _ = PasswordKeys(livePassword + plugin).native()
			case PluginSHA2:
				keys.SHA2, _ = PasswordKeys(livePassword + plugin).sha2()
				if c, err := Connect(t.Context(), s.config(plugin, livePassword+plugin)); err != nil {
					t.Fatal(err)
				} else {
					_ = c.Close() // the server knows the password now
				}
			default:
				continue
			}
			cfg := s.config(plugin, "")
			cfg.Keys = keys
			c, err := Connect(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			_ = c.Close()
			if plugin == PluginSHA2 {
				if err := s.Exec(t.Context(), "FLUSH PRIVILEGES"); err != nil {
					t.Fatal(err)
				}
				if _, err := Connect(t.Context(), cfg); !errors.Is(err, errKeys) {
					t.Errorf("the server has forgotten the password: %v", err)
				}
			}
		}
	})
}

func TestServersOwnHashesLetTheirUsersIn(t *testing.T) {
	eachServer(t, func(t *testing.T, s target) {
		plugin := s.AuthPlugins()[0]
		c, err := Connect(t.Context(), s.config(plugin, livePassword+plugin))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		hash := one(t, c, "SELECT authentication_string FROM mysql.user WHERE user = '"+plugin+"'")
		secret := mustSecret(t, hash)
		if _, plain := secret.Plain(); plain {
			t.Fatalf("%q is not taken for a hash", hash)
		}
		d := (&door{secrets: map[string]Secret{"u": secret}}).open(t, "tcp")
		for _, c := range []struct {
			password string
			code     uint16
		}{{livePassword + plugin, 0}, {livePassword, ErrAccessDenied}, {livePassword + plugin, 0}} {
			_, err := askByWeir(t, d.addr, "u", c.password, false)
			if CodeOf(err) != c.code || (c.code == 0 && err != nil) {
				t.Errorf("%q: %v", c.password, err)
			}
		}
	})
}
