package mywire

import (
	"bytes"
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"

	"github.com/weirdb/weir/internal/lab"
)

// A client is one way to ask a door who it thinks one is. It returns what the
// door said, or the error.
type client func(t *testing.T, addr, user, password string, useTLS bool) (string, error)

// clients are weir's own, go-sql-driver, and the command line clients that are
// installed.
func clients(t *testing.T) map[string]client {
	all := map[string]client{"weir": askByWeir, "go-sql-driver": askByDriver}
	for _, flavor := range []lab.Flavor{lab.FlavorMariaDB, lab.FlavorMySQL} {
		if path := commandLine(t, flavor); path != "" {
			all[string(flavor)] = func(t *testing.T, addr, user, password string, useTLS bool) (string, error) {
				return askByCommand(t, flavor, path, addr, user, password, useTLS)
			}
		}
	}
	return all
}

// commandLine returns the path of a flavor's client, "" if it is not installed.
func commandLine(t *testing.T, flavor lab.Flavor) string {
	t.Helper()
	bin, _, err := lab.FindMySQL(t.Context(), flavor, "")
	if err != nil {
		return ""
	}
	for _, candidate := range []string{bin + "/" + string(flavor), bin + "/../bin/" + string(flavor)} {
		if path, err := exec.LookPath(candidate); err == nil {
			return path
		}
	}
	path, err := exec.LookPath(string(flavor))
	if err != nil || flavor == lab.FlavorMySQL { // MariaDB has a client of that name as well
		return ""
	}
	return path
}

func askByWeir(t *testing.T, addr, user, password string, useTLS bool) (string, error) {
	cfg := ConnectConfig{Address: addr, User: user, Password: password, TLSMode: TLSDisabled}
	if useTLS {
		cfg.TLSMode = TLSRequired
	}
	c, err := Connect(t.Context(), cfg)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return one(t, c, "SELECT who"), nil
}

func askByDriver(t *testing.T, addr, user, password string, useTLS bool) (string, error) {
	db := openDriver(t, addr, user, password, useTLS)
	defer db.Close()
	var who string
	err := db.QueryRowContext(t.Context(), "SELECT who").Scan(&who)
	return who, err
}

func openDriver(t *testing.T, addr, user, password string, useTLS bool) *sql.DB {
	t.Helper()
	cfg := driver.NewConfig()
	cfg.User, cfg.Passwd, cfg.Net, cfg.Addr = user, password, "tcp", addr
	if strings.HasPrefix(addr, "/") {
		cfg.Net = "unix"
	}
	if useTLS {
		cfg.TLS = &tls.Config{InsecureSkipVerify: true}
	}
	cfg.Logger = &driver.NopLogger{}
	connector, err := driver.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return sql.OpenDB(connector)
}

func askByCommand(t *testing.T, flavor lab.Flavor, path, addr, user, password string, useTLS bool) (string, error) {
	args := []string{"--no-defaults", "-N", "-B", "-u", user, "--connect-timeout=20", "-e", "SELECT who"}
	if host, port, err := net.SplitHostPort(addr); err == nil {
		args = append(args, "--protocol=tcp", "-h", host, "-P", port)
	} else {
		args = append(args, "-S", addr)
	}
	// A client that is installed beside the system's has its plugins beside it.
	plugins, err := filepath.Glob(filepath.Join(filepath.Dir(path), "../lib/*/libmariadb3/plugin"))
	if err != nil {
		t.Fatal(err)
	}
	if flavor == lab.FlavorMariaDB && len(plugins) == 1 {
		args = append(args, "--plugin-dir="+plugins[0])
	}
	switch {
	case flavor == lab.FlavorMariaDB && useTLS:
		args = append(args, "--ssl")
	case flavor == lab.FlavorMariaDB:
		args = append(args, "--skip-ssl")
	case useTLS:
		args = append(args, "--ssl-mode=REQUIRED")
	default:
		args = append(args, "--ssl-mode=DISABLED", "--get-server-public-key")
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = []string{"HOME=" + t.TempDir(), "LC_ALL=C", "PATH=/usr/bin:/bin", "MYSQL_PWD=" + password}
	out, err := cmd.CombinedOutput()
	lines := slices.DeleteFunc(strings.Split(string(out), "\n"), func(line string) bool {
		// MariaDB's client says so from 11.4 on where it logs in without a password.
		return strings.HasPrefix(line, "WARNING: option --ssl-verify-server-cert is disabled")
	})
	text := strings.TrimSpace(strings.Join(lines, "\n"))
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, text)
	}
	return text, nil
}

func mustSecret(t *testing.T, s string) Secret {
	t.Helper()
	secret, err := ParseSecret(s)
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

func TestAcceptKnowsItsClients(t *testing.T) {
	const password = "päss wörd$"
	a := newAuthority(t)
	secrets := map[string]Secret{
		"plain":  mustSecret(t, password),
		"native": mustSecret(t, NewNativeSecret(password)),
		"sha2":   mustSecret(t, NewSHA2Secret(password)),
		"empty":  EmptySecret(),
	}
	for _, plugin := range []string{PluginNative, PluginSHA2} {
		cfg := AcceptConfig{Plugin: plugin, TLS: &tls.Config{Certificates: []tls.Certificate{a.issue("localhost")}}}
		for _, network := range []string{"tcp", "tls", "unix"} {
			d := (&door{cfg: cfg, secrets: secrets}).open(t, strings.Replace(network, "tls", "tcp", 1))
			for name, ask := range clients(t) {
				if plugin == PluginNative && network != "tcp" && (name == string(lab.FlavorMariaDB) || name == string(lab.FlavorMySQL)) {
					continue // a process for each login takes its time
				}
				for user := range secrets {
					if name == string(lab.FlavorMySQL) && user == "native" {
						continue // MySQL 9's client has lost that plugin
					}
					t.Run(fmt.Sprintf("%s/%s/%s/%s", plugin, network, name, user), func(t *testing.T) {
						checkClient(t, d, ask, user, password, network)
					})
				}
			}
		}
	}
}

func checkClient(t *testing.T, d *door, ask client, user, password, network string) {
	useTLS := network == "tls"
	want := user + " plain"
	if useTLS {
		want = user + " tls"
	}
	if user == "empty" {
		password = ""
	}
	// Twice: the second login by caching_sha2_password takes the fast path.
	for range 2 {
		if got, err := ask(t, d.addr, user, password, useTLS); err != nil || got != want {
			t.Fatalf("%q, %v, want %q (the door: %v)", got, err, want, d.lastErr())
		}
	}
	keys := d.lastKeys()
	switch user {
	case "plain", "empty":
		if !keys.HasPassword || keys.Password != password {
			t.Errorf("learned %v", keys)
		}
	case "native":
		if stage1, ok := PasswordKeys(password).native(); !ok || !bytes.Equal(keys.Native, stage1) {
			t.Errorf("learned %v", keys)
		}
	case "sha2":
		if stage1, ok := PasswordKeys(password).sha2(); !ok || !bytes.Equal(keys.SHA2, stage1) {
			t.Errorf("learned %v", keys)
		}
	}
	for _, wrong := range []string{password + "x", ""} {
		if wrong == password {
			continue
		}
		if _, err := ask(t, d.addr, user, wrong, useTLS); err == nil || !strings.Contains(err.Error(), "Access denied for user '"+user) {
			t.Errorf("with the wrong password: %v", err)
		}
		if err := d.lastErr(); CodeOf(err) != ErrAccessDenied {
			t.Errorf("the door: %v", err)
		}
	}
	if _, err := ask(t, d.addr, "nemo", password, useTLS); err == nil || !strings.Contains(err.Error(), "Access denied for user 'nemo'") {
		t.Errorf("unknown user: %v", err)
	}
}

func TestAcceptDemandsTLS(t *testing.T) {
	a := newAuthority(t)
	d := (&door{
		cfg:     AcceptConfig{TLS: &tls.Config{Certificates: []tls.Certificate{a.issue("localhost")}, ClientCAs: a.pool()}, TLSMode: TLSVerifyIdentity},
		secrets: map[string]Secret{"ann": mustSecret(t, "pw"), "bob": mustSecret(t, "pw")},
	}).open(t, "tcp")
	cert := a.issue("ann")
	cfg := ConnectConfig{Address: d.addr, User: "ann", Password: "pw", TLSMode: TLSDisabled}
	if _, err := Connect(t.Context(), cfg); CodeOf(err) != ErrSecureTransport {
		t.Errorf("without TLS: %v", err)
	}
	cfg.TLSMode = TLSVerifyIdentity
	cfg.TLSConfig = &tls.Config{RootCAs: a.pool(), Certificates: []tls.Certificate{cert}}
	c, err := Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got := one(t, c, "SELECT who"); got != "ann tls" {
		t.Errorf("%q", got)
	}
	_ = c.Close()
	cfg.User = "bob"
	if _, err := Connect(t.Context(), cfg); CodeOf(err) != ErrAccessDenied {
		t.Errorf("with another's certificate: %v", err)
	}
	cfg.TLSConfig = &tls.Config{RootCAs: a.pool()}
	if _, err := Connect(t.Context(), cfg); err == nil {
		t.Error("logged in without a certificate")
	}
}

// A config that is replaced while weir runs demands what the first one did.
func TestAcceptDemandsCertificatesByLaterConfigs(t *testing.T) {
	a := newAuthority(t)
	first := &tls.Config{Certificates: []tls.Certificate{a.issue("localhost")}, ClientCAs: a.pool()}
	later := first.Clone()
	first.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return later, nil }
	d := (&door{
		cfg:     AcceptConfig{TLS: first, TLSMode: TLSVerifyCA},
		secrets: map[string]Secret{"ann": mustSecret(t, "pw")},
	}).open(t, "tcp")
	cfg := ConnectConfig{Address: d.addr, User: "ann", Password: "pw", TLSMode: TLSVerifyIdentity, TLSConfig: &tls.Config{RootCAs: a.pool()}}
	if _, err := Connect(t.Context(), cfg); err == nil {
		t.Error("logged in without a certificate")
	}
	cfg.TLSConfig.Certificates = []tls.Certificate{a.issue("anybody")}
	c, err := Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

func TestAcceptTakesClearPasswordsOverTLSOnly(t *testing.T) {
	cert := newAuthority(t).issue("localhost")
	d := (&door{
		cfg:     AcceptConfig{Plugin: PluginClear, TLS: &tls.Config{Certificates: []tls.Certificate{cert}}},
		secrets: map[string]Secret{"u": mustSecret(t, "pw")},
	}).open(t, "tcp")
	if got, err := askByWeir(t, d.addr, "u", "pw", true); err != nil || got != "u tls" {
		t.Errorf("%q, %v", got, err)
	}
	if plugin := d.lastClient().Response.Plugin; plugin != PluginClear {
		t.Errorf("by %s", plugin)
	}
	if _, err := askByWeir(t, d.addr, "u", "wrong", true); CodeOf(err) != ErrAccessDenied {
		t.Error(err)
	}
	if _, err := askByWeir(t, d.addr, "u", "pw", false); !errors.Is(err, errInsecure) {
		t.Errorf("weir gave its password away: %v", err)
	}
	// A client that does give it away is asked for something better.
	conn, err := net.Dial("tcp", d.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	l := link{conn: conn, max: maxServerPacket}
	if _, err := l.read(); err != nil {
		t.Fatal(err)
	}
	r := Response{Caps: CapsRequired | CapPluginAuth, User: "u", Auth: []byte("pw\x00"), Plugin: PluginClear}
	if err := l.write(func(dst []byte, seq byte) []byte { return AppendResponse(dst, seq, &r) }); err != nil {
		t.Fatal(err)
	}
	payload, err := l.read()
	if plugin, _, perr := ParseAuthSwitch(payload); err != nil || perr != nil || plugin != PluginNative {
		t.Errorf("%q, %v, %v", payload, err, perr)
	}
}

func TestAcceptAuthenticatesAnotherUser(t *testing.T) {
	d := (&door{secrets: map[string]Secret{"ann": mustSecret(t, "a"), "bob": mustSecret(t, NewSHA2Secret("b"))}}).open(t, "tcp")
	c, err := Connect(t.Context(), ConnectConfig{Address: d.addr, User: "ann", Password: "a"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	packet := AppendChangeUser(nil, c.Caps, &ChangeUser{
		User: "bob", Auth: nativeProof([]byte("whatever"), c.Greeting.Salt), Charset: CharsetUTF8MB4, Plugin: PluginNative,
	})
	if _, err := c.Conn.Write(packet); err != nil {
		t.Fatal(err)
	}
	p := &Pending{Greeting: c.Greeting, cfg: ConnectConfig{Address: d.addr, User: "bob", Password: "b"}.withDefaults(), plugin: PluginNative}
	p.link = link{conn: c.Conn, max: maxServerPacket, seq: 1}
	if _, err := p.converse(c.Caps); err != nil {
		t.Fatal(err)
	}
	if got := one(t, c, "SELECT who"); got != "bob plain" {
		t.Errorf("%q", got)
	}
}

func TestAcceptRefusesNonsense(t *testing.T) {
	d := (&door{}).open(t, "tcp")
	for name, c := range map[string]struct {
		packet []byte
		code   uint16
	}{
		"garbage":         {AppendPacket(nil, 1, []byte("hello")), ErrBadHandshake},
		"old client":      {AppendPacket(nil, 1, make([]byte, 40)), ErrBadHandshake},
		"TLS not offered": {AppendSSLRequest(nil, 1, &Response{Caps: CapsRequired}), ErrBadHandshake},
		"too long":        {AppendHeader(nil, MaxPayload, 1), ErrBadHandshake},
		"out of order":    {AppendResponse(nil, 3, &Response{Caps: CapsRequired, User: "u"}), ErrBadHandshake},
		"nobody":          {AppendResponse(nil, 1, &Response{Caps: CapsRequired}), ErrAccessDenied},
	} {
		conn, err := net.Dial("tcp", d.addr)
		if err != nil {
			t.Fatal(err)
		}
		l := link{conn: conn, max: maxServerPacket}
		if _, err := l.read(); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(c.packet); err != nil {
			t.Fatal(err)
		}
		payload, err := l.read()
		if err != nil || ErrorCode(payload) != c.code {
			t.Errorf("%s: %q, %v, want %d", name, payload, err, c.code)
		}
		_ = conn.Close()
	}
}

func TestAcceptOfAClientThatLeaves(t *testing.T) {
	ours, theirs := net.Pipe()
	go func() {
		_, _ = (&link{conn: theirs, max: maxServerPacket}).read()
		_ = theirs.Close()
	}()
	if _, err := Accept(t.Context(), ours, AcceptConfig{}); !errors.Is(err, io.EOF) {
		t.Errorf("%v, want %v", err, io.EOF)
	}
}

// TestTrustAnswersProofs: a client of caching_sha2_password waits for a word about its proof,
// unless it has none. Some say so by an empty answer, libmysql by a NUL.
func TestTrustAnswersProofs(t *testing.T) {
	for name, x := range map[string]struct {
		auth []byte
		want byte
	}{
		"a proof": {make([]byte, 32), headerAuthMore},
		"a NUL":   {[]byte{0}, headerOK},
		"nothing": {nil, headerOK},
	} {
		ours, theirs := net.Pipe()
		said := make(chan byte, 1)
		go func() {
			p, _ := (&link{conn: theirs, max: maxServerPacket, seq: 1}).read()
			_, _ = io.Copy(io.Discard, theirs)
			said <- append(p, 0xff)[0]
		}()
		c := ChangedUser(ours, false, nil, WantedCaps, &ChangeUser{Plugin: PluginSHA2, Auth: x.auth})
		if err := errors.Join(c.Trust(t.Context()), c.Welcome(t.Context(), &OK{}), ours.Close()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := <-said; got != x.want {
			t.Errorf("%s is answered by %#02x, want %#02x", name, got, x.want)
		}
	}
}

func TestAcceptIsInterrupted(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go func() { _, _ = io.Copy(io.Discard, theirs) }()
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("changed my mind")
	cancel(reason)
	if _, err := Accept(ctx, ours, AcceptConfig{}); !errors.Is(err, reason) {
		t.Errorf("%v, want %v", err, reason)
	}
}

func TestSecretsPrintNothing(t *testing.T) {
	for _, v := range []any{
		mustSecret(t, "hush"), PasswordKeys("hush"), ConnectConfig{Address: "a:1", User: "u", Password: "hush"},
	} {
		if s := fmt.Sprintf("%v %+v %#v %s", v, v, v, v); strings.Contains(s, "hush") {
			t.Error(s)
		}
	}
}

func TestParseSecretRefuses(t *testing.T) {
	for _, s := range []string{"$A$005$short", "$A$xyz$" + strings.Repeat("a", 63), "$A$001$" + strings.Repeat("a", 63)} {
		if _, err := ParseSecret(s); err == nil || strings.Contains(err.Error(), s) {
			t.Errorf("%q: %v", s, err)
		}
	}
	if s, err := ParseSecret("*notahash"); err != nil || s.kind != secretPlain {
		t.Errorf("%v, %v", s, err)
	}
}

// The results of crypt(3), with salts that are not longer than it allows.
func TestSHA256Crypt(t *testing.T) {
	for _, c := range []struct {
		salt, password string
		rounds         int
		want           string
	}{
		{"saltstring", "Hello world!", 5000, "5B8vYYiY.CVt1RlTTf8KbXBH3hsxY/GNooZaBBGWEc5"},
		{"saltstringsaltst", "Hello world!", 10000, "3xv.VbSHBb41AL9AvLeujZkZRBAwqFMz2.opqey6IcA"},
		{"short", "we have a short salt string but not a short password", 77777, "JiO1O3ZpDAxGJeaDIuqCoEFysAe1mZNJRs3pw0KQRd/"},
	} {
		if got := sha256Crypt([]byte(c.password), []byte(c.salt), c.rounds); got != c.want {
			t.Errorf("%s: %s, want %s", c.salt, got, c.want)
		}
	}
}

// EmptySecret is the secret of a user who logs in without a password.
func EmptySecret() Secret { return Secret{kind: secretPlain} }
