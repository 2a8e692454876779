package pgwire

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// The roles of the real server, one for each authentication method. The password is "s3cret A"
// with a decomposed umlaut and a ligature.
const realPassword = "s3cret A\u0308\ufb01"

const realHBA = `local all all trust
host all trusted 127.0.0.1/32 trust
host all clear 127.0.0.1/32 password
host all old 127.0.0.1/32 md5
host all scram 127.0.0.1/32 scram-sha-256
hostssl all secure 127.0.0.1/32 scram-sha-256
hostnossl all open 127.0.0.1/32 scram-sha-256
hostssl all cert 127.0.0.1/32 cert
`

// realServer starts a PostgreSQL with TLS and these roles.
func realServer(t *testing.T) *lab.Postgres {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil { // the server is another user
			t.Fatal(err)
		}
	}
	hba := filepath.Join(dir, "hba.conf")
	if err := os.WriteFile(hba, []byte(realHBA), 0o644); err != nil {
		t.Fatal(err)
	}
	p := labtest.Postgres(t, lab.PostgresConfig{
		Durability: lab.Fast, TLS: lab.TLSOptional, SharedBuffers: "32MB", Settings: map[string]string{"hba_file": hba},
	})
	b := superuser(t, p)
	for _, role := range []string{"trusted", "clear", "old", "scram", "secure", "open", "cert"} {
		encryption := "scram-sha-256"
		if role == "old" {
			encryption = "md5"
		}
		run(t, b, fmt.Sprintf("set password_encryption = '%s'; create role %s login password '%s'", encryption, role, realPassword))
	}
	return p
}

// superuser logs in over the Unix socket, until the test ends.
func superuser(t *testing.T, p *lab.Postgres) *Backend {
	t.Helper()
	b, err := Connect(t.Context(), ConnectConfig{Address: fmt.Sprintf("%s/.s.PGSQL.%d", p.SocketDir(), p.Port()), User: p.User(), Database: "postgres"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Conn.Close() })
	return b
}

// run executes sql and returns the first column of the last row.
func run(t *testing.T, b *Backend, sql string) string {
	t.Helper()
	l := &link{conn: b.Conn, max: maxServerMessage}
	if err := l.write(AppendQuery(nil, sql)); err != nil {
		t.Fatal(err)
	}
	var answer string
	for {
		typ, body, err := l.read()
		if err != nil {
			t.Fatal(err)
		}
		switch typ {
		case ServerError:
			t.Fatalf("%s: %v", sql, serverError(body))
		case ServerDataRow:
			row, err := ParseDataRow(body, nil)
			if err != nil {
				t.Fatal(err)
			}
			answer = string(row[0])
		case ServerReady:
			return answer
		}
	}
}

func TestConnectRealServer(t *testing.T) {
	p := realServer(t)
	ca := x509.NewCertPool()
	pem, err := os.ReadFile(p.CACert())
	if err != nil || !ca.AppendCertsFromPEM(pem) {
		t.Fatal(err)
	}
	stranger := newAuthority(t).pool()
	cert, err := p.ClientCert("cert")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(cert.Cert, cert.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots := &tls.Config{RootCAs: ca}
	tests := []struct {
		name   string
		cfg    ConnectConfig
		method AuthMethod
		tls    bool
		fails  string // part of the error
	}{
		{"trust", ConnectConfig{User: "trusted", TLSMode: TLSDisable}, AuthTrust, false, ""},
		{"cleartext", ConnectConfig{User: "clear", TLSMode: TLSDisable}, AuthPassword, false, ""},
		{"md5", ConnectConfig{User: "old", TLSMode: TLSDisable}, AuthMD5, false, ""},
		{"scram", ConnectConfig{User: "scram", TLSMode: TLSDisable}, AuthSCRAM, false, ""},
		{"scram prefers TLS", ConnectConfig{User: "scram"}, AuthSCRAM, true, ""},
		{"scram allows TLS", ConnectConfig{User: "scram", TLSMode: TLSAllow}, AuthSCRAM, false, ""},
		{"scram with binding", ConnectConfig{User: "scram", TLSMode: TLSRequire, ChannelBinding: "require"}, AuthSCRAM, true, ""},
		{"scram declines binding", ConnectConfig{User: "scram", TLSMode: TLSRequire, ChannelBinding: "disable"}, AuthSCRAM, true, ""},
		{"binding needs TLS", ConnectConfig{User: "scram", TLSMode: TLSDisable, ChannelBinding: "require"}, "", false, "channel binding is required"},
		{"binding needs SCRAM", ConnectConfig{User: "clear", ChannelBinding: "require"}, "", false, "channel binding is required"},
		{"binding needs authentication", ConnectConfig{User: "trusted", ChannelBinding: "require"}, "", false, "channel binding is required"},
		{"md5 over TLS", ConnectConfig{User: "old", TLSMode: TLSRequire}, AuthMD5, true, ""},
		{"TLS only, allow falls back to it", ConnectConfig{User: "secure", TLSMode: TLSAllow}, AuthSCRAM, true, ""},
		{"TLS only, disabled", ConnectConfig{User: "secure", TLSMode: TLSDisable}, "", false, "no encryption"},
		{"plain only, prefer falls back to it", ConnectConfig{User: "open"}, AuthSCRAM, false, ""},
		{"plain only, required", ConnectConfig{User: "open", TLSMode: TLSRequire}, "", false, "SSL encryption"},
		{"verify-ca", ConnectConfig{User: "scram", TLSMode: TLSVerifyCA, TLSConfig: roots}, AuthSCRAM, true, ""},
		{"verify-ca minds no name", ConnectConfig{User: "scram", TLSMode: TLSVerifyCA, TLSConfig: &tls.Config{RootCAs: ca, ServerName: "elsewhere.test"}}, AuthSCRAM, true, ""},
		{"verify-ca, a stranger's", ConnectConfig{User: "scram", TLSMode: TLSVerifyCA, TLSConfig: &tls.Config{RootCAs: stranger}}, "", false, "unknown authority"},
		{"verify-full", ConnectConfig{User: "scram", TLSMode: TLSVerifyFull, TLSConfig: roots}, AuthSCRAM, true, ""},
		{"verify-full, other name", ConnectConfig{User: "scram", TLSMode: TLSVerifyFull, TLSConfig: &tls.Config{RootCAs: ca, ServerName: "elsewhere.test"}}, "", false, "elsewhere.test"},
		{"verify-full, a stranger's", ConnectConfig{User: "scram", TLSMode: TLSVerifyFull, TLSConfig: &tls.Config{RootCAs: stranger}}, "", false, "unknown authority"},
		{"client certificate", ConnectConfig{User: "cert", TLSMode: TLSVerifyFull, TLSConfig: &tls.Config{RootCAs: ca, Certificates: []tls.Certificate{pair}}}, AuthTrust, true, ""},
		{"no client certificate", ConnectConfig{User: "cert", TLSMode: TLSRequire}, "", false, "certificate"},
		{"newer protocol", ConnectConfig{User: "scram", ProtocolVersion: Version32}, AuthSCRAM, true, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := tt.cfg
			cfg.Address, cfg.Database, cfg.Password = p.Addr(), "postgres", realPassword
			cfg.Params = []Param{{"application_name", "weir test"}, {"options", FormatOptions([]Param{{"work_mem", "5MB"}})}}
			b, err := Connect(t.Context(), cfg)
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) || strings.Contains(err.Error(), "s3cret") {
					t.Errorf("got %v, want %q", err, tt.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer b.Conn.Close()
			if b.Method != tt.method || b.TLS != tt.tls {
				t.Errorf("method %s, TLS %v, want %s, %v", b.Method, b.TLS, tt.method, tt.tls)
			}
			// Servers from version 18 on speak protocol 3.2, with longer cancel keys, if asked.
			version, secret := uint32(Version30), 4
			if major, _, _ := strings.Cut(b.Param("server_version"), "."); cfg.ProtocolVersion == Version32 && len(major) == 2 && major >= "18" {
				version, secret = Version32, 32
			}
			if b.PID == 0 || len(b.Secret) != secret || b.Version != version || b.Param("application_name") != "weir test" {
				t.Errorf("pid %d, %d bytes of secret, version %x, %v", b.PID, len(b.Secret), b.Version, b.Params)
			}
			if got := run(t, b, "select current_user || ' ' || current_setting('work_mem')"); got != tt.cfg.User+" 5MB" {
				t.Errorf("logged in as %s", got)
			}
		})
	}

	t.Run("prepared passwords", func(t *testing.T) {
		b := superuser(t, p)
		for _, tt := range saslprepTests {
			if tt.in == "" || !utf8.ValidString(tt.in) {
				continue // not a password to PostgreSQL, or not text
			}
			literal := "E'"
			for _, r := range tt.in {
				literal += fmt.Sprintf("\\U%08x", r)
			}
			run(t, b, "create role prepared password "+literal+"'")
			text := run(t, b, "select rolpassword from pg_authid where rolname = 'prepared'")
			run(t, b, "drop role prepared")
			theirs, err := parseSCRAMSecret(strings.TrimPrefix(text, mechSCRAM+"$"))
			if err != nil {
				t.Fatal(err)
			}
			ours, err := newSCRAMKeys(tt.in, theirs.salt, theirs.iterations)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(ours.stored, theirs.stored) {
				t.Errorf("password %+q has other keys at the server", tt.in)
			}
		}
	})
	t.Run("wrong password", func(t *testing.T) {
		for _, user := range []string{"clear", "old", "scram", "secure", "open"} {
			_, err := Connect(t.Context(), ConnectConfig{Address: p.Addr(), User: user, Password: "hunter2"})
			want := fmt.Sprintf("connect to %s as %s: FATAL: password authentication failed for user %q (SQLSTATE 28P01)", p.Addr(), user, user)
			if user == "open" { // the attempt with TLS fails first, and says so
				want = fmt.Sprintf("connect to %s as %s: FATAL: password", p.Addr(), user)
			}
			if err == nil || !strings.HasPrefix(err.Error(), want) || CodeOf(err) != CodeInvalidPassword {
				t.Errorf("%s:\n got %v\nwant %s", user, err, want)
			}
		}
	})
	t.Run("no password", func(t *testing.T) {
		for _, user := range []string{"clear", "old", "scram"} {
			_, err := Connect(t.Context(), ConnectConfig{Address: p.Addr(), User: user, TLSMode: TLSDisable})
			if err == nil || !strings.Contains(err.Error(), "none is configured") {
				t.Errorf("%s: %v", user, err)
			}
		}
	})
	t.Run("keys without password", func(t *testing.T) {
		keys := &ClientKeys{ClientKey: make([]byte, 32), ServerKey: make([]byte, 32)}
		for user, want := range map[string]string{"clear": "only SCRAM keys", "old": "only SCRAM keys", "scram": "password authentication failed"} {
			_, err := Connect(t.Context(), ConnectConfig{Address: p.Addr(), User: user, Keys: keys, TLSMode: TLSDisable})
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", user, err, want)
			}
		}
	})
	t.Run("unknown database", func(t *testing.T) {
		_, err := Connect(t.Context(), ConnectConfig{Address: p.Addr(), User: "trusted", Database: "nowhere"})
		if CodeOf(err) != CodeInvalidDatabase {
			t.Errorf("got %v", err)
		}
	})
	t.Run("relay", func(t *testing.T) { testRelayRealServer(t, p) })
	t.Run("pass through", func(t *testing.T) { testPassThroughRealServer(t, p) })
	t.Run("cancel", func(t *testing.T) { testCancelRealServer(t, p) })
	t.Run("role made from our secret", func(t *testing.T) {
		secret, err := NewSCRAMSecret("geheim")
		if err != nil {
			t.Fatal(err)
		}
		b := superuser(t, p)
		run(t, b, "alter role secure password '"+secret+"'")
		b, err = Connect(t.Context(), ConnectConfig{Address: p.Addr(), User: "secure", Password: "geheim", Database: "postgres"})
		if err != nil {
			t.Fatal(err)
		}
		_ = b.Conn.Close()
	})
	t.Run("cancelled context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := Connect(ctx, ConnectConfig{Address: p.Addr(), User: "trusted"}); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

// testPassThroughRealServer checks a client's login with the SCRAM secret that the server
// stores, and logs in to the server with the keys that the client revealed.
func testPassThroughRealServer(t *testing.T, p *lab.Postgres) {
	secret := run(t, superuser(t, p), "select rolpassword from pg_authid where rolname = 'scram'")
	front := (&door{method: AuthSCRAM, secrets: map[string]string{"scram": secret}}).open(t, "tcp")
	if out, ok := psql(t, conninfo(front.addr, "user=scram"), "PGPASSWORD="+realPassword); !ok {
		t.Fatalf("psql: %q; weir: %v", out, front.lastErr())
	}
	for _, mode := range []TLSMode{TLSDisable, TLSRequire} {
		b, err := Connect(t.Context(), ConnectConfig{Address: p.Addr(), User: "scram", Database: "postgres", Keys: front.lastKeys(), TLSMode: mode})
		if err != nil {
			t.Fatal(err)
		}
		if got := run(t, b, "select current_user"); got != "scram" {
			t.Errorf("logged in as %q", got)
		}
		_ = b.Conn.Close()
	}
}

func testCancelRealServer(t *testing.T, p *lab.Postgres) {
	for _, mode := range []TLSMode{TLSDisable, TLSAllow, TLSPrefer, TLSRequire} {
		cfg := ConnectConfig{Address: p.Addr(), User: "trusted", Database: "postgres", TLSMode: mode}
		b, err := Connect(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		l := &link{conn: b.Conn, max: maxServerMessage}
		// The statement raises a notice, because the row description is sent before the function
		// sleeps only if something flushes it.
		if err := l.write(AppendQuery(nil, `do $$ begin raise notice 'running'; perform pg_sleep(600); end $$`)); err != nil {
			t.Fatal(err)
		}
		if typ, _, err := l.read(); err != nil || typ != ServerNotice {
			t.Fatalf("message %q, %v", typ, err)
		}
		if err := Cancel(t.Context(), cfg, b.PID, b.Secret); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
		typ, body, err := l.read()
		if err != nil || typ != ServerError || CodeOf(serverError(body)) != CodeQueryCanceled {
			t.Errorf("%s: message %q %q, %v", mode, typ, body, err)
		}
		_ = b.Conn.Close()
	}
}

// fake listens on the loopback and plays one script per connection.
func fake(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
	return l.Addr().String()
}

// hear reads the client's first message.
func hear(conn net.Conn) { _, _ = conn.Read(make([]byte, 1000)) }

func TestConnectDistrustsServers(t *testing.T) {
	ready := AppendReadyForQuery(nil, StatusIdle)
	say := func(msg []byte) func(net.Conn) {
		return func(conn net.Conn) {
			hear(conn)
			_, _ = conn.Write(msg)
			_, _ = io.Copy(io.Discard, conn)
		}
	}
	tests := []struct {
		name  string
		mode  TLSMode
		serve func(net.Conn)
		want  string
	}{
		{"skips its own SCRAM proof", TLSDisable, func(conn net.Conn) {
			hear(conn)
			_, _ = conn.Write(AppendAuthSASL(nil, mechSCRAM))
			hear(conn)
			_, _ = conn.Write(append(AppendAuthOK(nil), ready...))
		}, "without proving"},
		{"sends a wrong proof", TLSDisable, func(conn net.Conn) {
			l := &link{conn: conn, max: maxAuthMessage}
			hear(conn)
			_, _ = conn.Write(AppendAuthSASL(nil, mechSCRAM))
			body, err := l.readResponse()
			if err != nil {
				return
			}
			_, first, _ := parseSASLInitial(body)
			nonce := first[strings.Index(string(first), "r=")+2:]
			_, _ = conn.Write(AppendAuthSASLContinue(nil, []byte("r="+string(nonce)+"x,s=YQ==,i=1")))
			_, _ = l.readResponse()
			_, _ = conn.Write(append(AppendAuthOK(AppendAuthSASLFinal(nil, []byte("v=AAAA"))), ready...))
		}, "does not know the password"},
		{"asks for Kerberos", TLSDisable, say(appendAuth(nil, authGSS, nil)), "GSSAPI"},
		{"offers unknown mechanisms", TLSDisable, say(AppendAuthSASL(nil, "OAUTHBEARER")), "OAUTHBEARER"},
		{"sends rows before the login", TLSDisable, say(AppendDataRow(nil, nil)), "malformed"},
		{"sends a huge message", TLSDisable, say([]byte{'R', 0x7f, 0xff, 0xff, 0xff}), "limit"},
		{"sends a negative length", TLSDisable, say([]byte{'R', 0xff, 0xff, 0xff, 0xff}), "malformed"},
		{"goes away", TLSDisable, hear, "unexpected EOF"},
		{"goes away before it is ready", TLSDisable, func(conn net.Conn) { hear(conn); _, _ = conn.Write(AppendAuthOK(nil)) }, "unexpected EOF"},
		{"offers a newer protocol", TLSDisable, say(AppendNegotiateVersion(nil, Version32, nil)), "offers 3.2"},
		{"has no TLS", TLSRequire, func(conn net.Conn) { hear(conn); _, _ = conn.Write([]byte{'N'}) }, "has no TLS"},
		{"answers TLS with an error text", TLSRequire, func(conn net.Conn) { hear(conn); _, _ = conn.Write([]byte("EInvalid; call +1-555-EVIL\x00")) }, "byte 0x45"},
		{"injects bytes before TLS", TLSRequire, say(append([]byte{'S'}, append(AppendAuthOK(nil), ready...)...)), "TLS handshake"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			addr := fake(t, tt.serve)
			b, err := Connect(t.Context(), ConnectConfig{Address: addr, User: "app", Password: "hunter2", TLSMode: tt.mode})
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "EVIL") || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%+v, %v, want %q", b, err, tt.want)
			}
			if err != nil && !strings.HasPrefix(err.Error(), "connect to "+addr+" as app: ") {
				t.Errorf("the error does not say where: %v", err)
			}
		})
	}
}

// With sslmode=prefer a broken TLS handshake leads to a plain connection; with require it does
// not.
func TestConnectPreferSurvivesBrokenTLS(t *testing.T) {
	addr := fake(t, func(conn net.Conn) {
		head := make([]byte, 8)
		if _, err := io.ReadFull(conn, head); err != nil {
			return
		}
		if head[7] == 0x2f { // SSLRequest
			_, _ = conn.Write([]byte("Snot TLS at all"))
			return
		}
		hear(conn)
		_, _ = conn.Write(AppendReadyForQuery(AppendAuthOK(nil), StatusIdle))
	})
	b, err := Connect(t.Context(), ConnectConfig{Address: addr, User: "app"})
	if err != nil || b.TLS {
		t.Fatalf("prefer: %+v, %v", b, err)
	}
	_ = b.Conn.Close()
	if _, err := Connect(t.Context(), ConnectConfig{Address: addr, User: "app", TLSMode: TLSRequire}); err == nil {
		t.Error("require: connected")
	}
}

func TestConnectTimeout(t *testing.T) {
	addr := fake(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	cfg := ConnectConfig{Address: addr, User: "app", TLSMode: TLSDisable, Timeout: time.Millisecond}
	if _, err := Connect(t.Context(), cfg); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no answer within 1ms") {
		t.Errorf("Connect to a silent server: %v", err)
	}
	if err := Cancel(t.Context(), cfg, 1, []byte("1234")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Cancel on a silent server: %v", err)
	}
}

// A server that stops answering in the TLS handshake has not refused TLS: with sslmode=prefer,
// the client must not continue without it.
func TestConnectTimeoutInHandshakeIsNoFallback(t *testing.T) {
	var greetings, dials atomic.Int32
	reached := make(chan struct{}, 10)
	addr := fake(t, func(conn net.Conn) {
		greetings.Add(1)
		if _, err := io.ReadFull(conn, make([]byte, 8)); err != nil {
			return
		}
		_, _ = conn.Write([]byte{'S'})
		if _, err := io.ReadFull(conn, make([]byte, 5)); err != nil { // of the ClientHello
			return
		}
		reached <- struct{}{}
		_, _ = io.Copy(io.Discard, conn)
	})
	reason := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-reached
		cancel(reason)
	}()
	_, err := Connect(ctx, ConnectConfig{Address: addr, User: "app", Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials.Add(1)
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}})
	if !errors.Is(err, reason) || dials.Load() != 1 || greetings.Load() != 1 {
		t.Errorf("%v after %d attempts", err, dials.Load())
	}
}

func TestConnectDirectTLSAndNewProtocol(t *testing.T) {
	ca := newAuthority(t)
	d := (&door{
		cfg:    AcceptConfig{TLS: &tls.Config{Certificates: []tls.Certificate{ca.issue("localhost")}}, TLSMode: TLSRequire},
		method: AuthSCRAM, secrets: map[string]string{"app": "s3cret"},
	}).open(t, "tcp")
	b, err := Connect(t.Context(), ConnectConfig{
		Address: d.addr, User: "app", Password: "s3cret", TLSMode: TLSVerifyFull, TLSDirect: true, ChannelBinding: "require",
		TLSConfig: &tls.Config{RootCAs: ca.pool(), ServerName: "localhost"}, ProtocolVersion: Version32,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Conn.Close()
	if b.Version != Version32 || len(b.Secret) != 32 || !b.TLS {
		t.Errorf("version %x, %d bytes of secret, TLS %v", b.Version, len(b.Secret), b.TLS)
	}
}

func TestConnectRefusesBadConfig(t *testing.T) {
	tests := []struct {
		cfg  ConnectConfig
		want string
	}{
		{ConnectConfig{User: "a"}, "no server address"},
		{ConnectConfig{Address: "x:1"}, "no user name"},
		{ConnectConfig{Address: "x:1", User: "a\x00superuser\x00on"}, "NUL"},
		{ConnectConfig{Address: "x:1", User: "a", Database: "b\x00"}, "NUL"},
		{ConnectConfig{Address: "x:1", User: "a", Params: []Param{{"options", "a\x00"}}}, "NUL"},
		{ConnectConfig{Address: "x:1", User: "a", Params: []Param{{"", "a"}}}, "is empty"},
		{ConnectConfig{Address: "x:1", User: "a", TLSMode: "yes"}, "TLS mode"},
		{ConnectConfig{Address: "x:1", User: "a", ChannelBinding: "yes"}, "channel binding"},
		{ConnectConfig{Address: "x:1", User: "a", TLSDirect: true}, "direct TLS"},
		{ConnectConfig{Address: "x:1", User: "a", ProtocolVersion: 2 << 16}, "protocol version 2.0"},
	}
	for _, tt := range tests {
		tt.cfg.Dial = func(context.Context, string, string) (net.Conn, error) {
			t.Errorf("%s: dialled", tt.cfg)
			return nil, net.ErrClosed
		}
		if _, err := Connect(t.Context(), tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.cfg, err, tt.want)
		}
	}
}

func TestConnectNobodyThere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	_, err = Connect(t.Context(), ConnectConfig{Address: addr, User: "app", Database: "shop"})
	if want := "connect to " + addr + " as app, database shop: connect: connection refused"; err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
