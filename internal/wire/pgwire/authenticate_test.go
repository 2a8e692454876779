package pgwire

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// secretsOf returns the three forms in which the password may be stored.
func secretsOf(t *testing.T, user, password string) map[string]string {
	t.Helper()
	scram, err := NewSCRAMSecret(password)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{
		"plain": password,
		"md5":   "md5" + md5Hex(password, user),
		"scram": scram,
	}
}

// Each method with each form of secret, to a real psql, a pgx and a weir.
func TestAuthenticateRealClients(t *testing.T) {
	// SASLprep has work to do: a decomposed letter for all, and a ligature for
	// those who normalise by NFKC. pgx does so by NFC, which RFC 4013 does not.
	const user, composed, ligature = "app", "s3cret A\u0308", "s3cret A\u0308\ufb01"
	tests := []struct {
		method AuthMethod
		secret string
		fits   bool
	}{
		{AuthTrust, "plain", true},
		{AuthPassword, "plain", true},
		{AuthPassword, "md5", true},
		{AuthPassword, "scram", true},
		{AuthMD5, "plain", true},
		{AuthMD5, "md5", true},
		{AuthMD5, "scram", true},
		{AuthSCRAM, "plain", true},
		{AuthSCRAM, "md5", false},
		{AuthSCRAM, "scram", true},
		{AuthSCRAM, "unknown user", false},
		{AuthPassword, "unknown user", false},
		{AuthMD5, "unknown user", false},
	}
	clients := []struct {
		name     string
		password string
		run      func(t *testing.T, addr, password string) (string, bool)
	}{
		{"psql", ligature, func(t *testing.T, addr, password string) (string, bool) {
			return psql(t, conninfo(addr, "user=app sslmode=disable"), "PGPASSWORD="+password)
		}},
		{"pgx", composed, func(t *testing.T, addr, password string) (string, bool) {
			cfg, err := pgconn.ParseConfig(conninfo(addr, "user=app sslmode=disable"))
			if err != nil {
				t.Fatal(err)
			}
			cfg.Password = password
			return pgxAsk(t, cfg)
		}},
		{"weir", ligature, func(t *testing.T, addr, password string) (string, bool) {
			b, err := Connect(t.Context(), ConnectConfig{Address: addr, User: user, Password: password, TLSMode: TLSDisable})
			if err != nil {
				return err.Error(), false
			}
			_ = b.Conn.Close()
			return "app plain", true
		}},
	}
	for _, tt := range tests {
		for _, c := range clients {
			t.Run(fmt.Sprintf("%s/%s/%s", tt.method, tt.secret, c.name), func(t *testing.T) {
				secrets := secretsOf(t, user, c.password)
				d := (&door{method: tt.method, secrets: map[string]string{user: secrets[tt.secret]}}).open(t, "tcp")
				out, ok := c.run(t, d.addr, c.password)
				if ok != tt.fits || (ok && out != "app plain") {
					t.Errorf("right password: %q; weir: %v", out, d.lastErr())
				}
				if tt.method == AuthTrust {
					return
				}
				out, ok = c.run(t, d.addr, "wrong")
				if ok || !strings.Contains(out, `password authentication failed for user "app"`) {
					t.Errorf("wrong password: %q, %v", out, ok)
				}
				if err := d.lastErr(); CodeOf(err) != CodeInvalidPassword || strings.Contains(err.Error(), "s3cret") {
					t.Errorf("weir's own error: %v", err)
				}
			})
		}
	}
}

// pgxAsk connects, asks one question and returns the answer or the error.
func pgxAsk(t *testing.T, cfg *pgconn.Config) (string, bool) {
	t.Helper()
	conn, err := pgconn.ConnectConfig(t.Context(), cfg)
	if err != nil {
		return err.Error(), false
	}
	defer conn.Close(context.Background())
	results, err := conn.Exec(t.Context(), "select who").ReadAll()
	if err != nil {
		return err.Error(), false
	}
	return string(results[0].Rows[0][0]), true
}

func TestAuthenticateTLSRealClients(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	root := ca.rootFile()
	cert, key := ca.pairFiles(ca.issue("app"))
	strangerCert, strangerKey := other.pairFiles(other.issue("app"))
	secrets := secretsOf(t, "app", "s3cret")
	server := &tls.Config{Certificates: []tls.Certificate{ca.issue("localhost")}}
	mutual := server.Clone()
	mutual.ClientCAs = ca.pool()
	files := fmt.Sprintf(" sslcert=%s sslkey=%s", cert, key)
	tests := []struct {
		name   string
		mode   TLSMode
		tls    *tls.Config
		method AuthMethod
		client string
		want   string // psql's answer, or part of its error
	}{
		{"no TLS here, client prefers", TLSDisable, nil, AuthSCRAM, "user=app sslmode=prefer", "app plain"},
		{"no TLS here, client requires", TLSDisable, nil, AuthSCRAM, "user=app sslmode=require", "does not support SSL"},
		{"allow, client without", TLSAllow, server, AuthSCRAM, "user=app sslmode=disable", "app plain"},
		{"prefer, client prefers", TLSPrefer, server, AuthSCRAM, "user=app sslmode=prefer", "app tls"},
		{"prefer, client without", TLSPrefer, server, AuthSCRAM, "user=app sslmode=disable", "app plain"},
		{"prefer by default", "", server, AuthSCRAM, "user=app sslmode=require", "app tls"},
		{"require, client without", TLSRequire, server, AuthSCRAM, "user=app sslmode=disable", "connection without TLS refused"},
		{"require, client allows", TLSRequire, server, AuthSCRAM, "user=app sslmode=allow", "app tls"},
		{"require, client requires binding", TLSRequire, server, AuthSCRAM, "user=app sslmode=require channel_binding=require", "app tls"},
		{"require, client declines binding", TLSRequire, server, AuthSCRAM, "user=app sslmode=require channel_binding=disable", "app tls"},
		{"client verifies authority", TLSRequire, server, AuthSCRAM, "user=app sslmode=verify-ca sslrootcert=" + root, "app tls"},
		{"client verifies name", TLSRequire, server, AuthSCRAM, "user=app sslmode=verify-full host=localhost hostaddr=127.0.0.1 sslrootcert=" + root, "app tls"},
		{"client verifies name in vain", TLSRequire, server, AuthSCRAM, "user=app sslmode=verify-full sslrootcert=" + root, "does not match host name"},
		{"verify-ca without certificate", TLSVerifyCA, mutual, AuthSCRAM, "user=app sslmode=require", "certificate required"},
		{"verify-ca with a stranger's", TLSVerifyCA, mutual, AuthSCRAM, fmt.Sprintf("user=app sslmode=require sslcert=%s sslkey=%s", strangerCert, strangerKey), "unknown ca"},
		{"verify-ca with certificate", TLSVerifyCA, mutual, AuthSCRAM, "user=app sslmode=require" + files, "app tls"},
		{"verify-full, same name", TLSVerifyFull, mutual, AuthSCRAM, "user=app sslmode=require" + files, "app tls"},
		{"verify-full, other name", TLSVerifyFull, mutual, AuthTrust, "user=root sslmode=require" + files, `certificate authentication failed for user "root"`},
		{"cert", TLSRequire, mutual, AuthCert, "user=app sslmode=require" + files, "app tls"},
		{"cert, other name", TLSRequire, mutual, AuthCert, "user=root sslmode=require" + files, `certificate authentication failed for user "root"`},
		{"cert, none shown", TLSRequire, mutual, AuthCert, "user=app sslmode=require", `certificate authentication failed for user "app"`},
		{"cert without TLS", TLSPrefer, mutual, AuthCert, "user=app sslmode=disable", `certificate authentication failed for user "app"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := (&door{
				cfg: AcceptConfig{TLS: tt.tls, TLSMode: tt.mode}, method: tt.method, secrets: map[string]string{"app": secrets["scram"]},
			}).open(t, "tcp")
			out, ok := psql(t, conninfo(d.addr, tt.client), "PGPASSWORD=s3cret")
			success := strings.HasPrefix(tt.want, "app ")
			if ok != success || !strings.Contains(out, tt.want) {
				t.Errorf("psql: %q, want %q; weir: %v", out, tt.want, d.lastErr())
			}
		})
	}
}

// A Unix socket is never asked for TLS, whatever the mode.
func TestAuthenticateUnixSocket(t *testing.T) {
	ca := newAuthority(t)
	d := (&door{
		cfg:    AcceptConfig{TLS: &tls.Config{Certificates: []tls.Certificate{ca.issue("localhost")}}, TLSMode: TLSRequire},
		method: AuthSCRAM, secrets: map[string]string{"app": "s3cret"},
	}).open(t, "unix")
	if out, ok := psql(t, conninfo(d.addr, "user=app"), "PGPASSWORD=s3cret"); !ok || out != "app plain" {
		t.Errorf("psql: %q; weir: %v", out, d.lastErr())
	}
	cfg, err := ParseDSN(fmt.Sprintf("host=%s user=app password=s3cret sslmode=verify-full", filepath.Dir(d.addr)))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	_ = b.Conn.Close()
}

// The keys learned from a login must open a server: the SCRAM keys if the server has the same
// secret, the password where weir saw it.
func TestAuthenticateYieldsKeys(t *testing.T) {
	secrets := secretsOf(t, "app", "s3cret")
	for _, tt := range []struct {
		method AuthMethod
		secret string
		opens  string // form of the secret at the server behind; "" if no keys
	}{
		{AuthSCRAM, "scram", "scram"},
		{AuthSCRAM, "plain", "md5"},
		{AuthPassword, "scram", "md5"},
		{AuthMD5, "plain", "scram"},
		{AuthMD5, "md5", "md5"},
		{AuthTrust, "plain", ""},
	} {
		t.Run(fmt.Sprintf("%s with %s secret", tt.method, tt.secret), func(t *testing.T) {
			front := (&door{method: tt.method, secrets: map[string]string{"app": secrets[tt.secret]}}).open(t, "tcp")
			b, err := Connect(t.Context(), ConnectConfig{Address: front.addr, User: "app", Password: "s3cret"})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Conn.Close()
			keys := front.lastKeys()
			if tt.opens == "" {
				if keys != nil {
					t.Errorf("keys out of nothing: %v", keys)
				}
				return
			}
			behind := (&door{method: AuthMD5, secrets: map[string]string{"app": secrets[tt.opens]}}).open(t, "tcp")
			b, err = Connect(t.Context(), ConnectConfig{Address: behind.addr, User: "app", Keys: keys})
			if err != nil {
				t.Fatal(err)
			}
			_ = b.Conn.Close()
		})
	}
}

// shape records what a server sends during a failing SCRAM login, with all that
// is random by nature removed.
func shape(t *testing.T, addr, user string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	l := link{conn: conn, max: maxServerMessage}
	send := func(msg []byte) {
		t.Helper()
		if err := l.write(msg); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	send(AppendStartup(nil, Version30, []Param{{"user", user}}))
	c := &scramClient{password: "wrong", gs2: "n,,"}
	for {
		typ, body, err := l.read()
		if errors.Is(err, io.EOF) {
			return out.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "%c %d", typ, len(body))
		if typ == ServerError {
			fmt.Fprintf(&out, " %q", bytes.ReplaceAll(body, []byte(user), []byte("USER")))
		}
		out.WriteByte('\n')
		if typ != ServerAuth {
			continue
		}
		switch kind, data, _ := parseAuth(body); kind {
		case authSASL:
			fmt.Fprintf(&out, "%q\n", data)
			send(AppendSASLInitial(nil, mechSCRAM, c.first()))
		case authSASLContinue:
			fmt.Fprintf(&out, "%s\n", data[bytes.LastIndexByte(data, ','):])
			msg, err := c.final(data)
			if err != nil {
				t.Fatal(err)
			}
			send(AppendSASLResponse(nil, msg))
		}
	}
}

func TestUnknownUserLooksLikeAWrongPassword(t *testing.T) {
	secrets := secretsOf(t, "alice", "s3cret")
	d := (&door{method: AuthSCRAM, secrets: map[string]string{"alice": secrets["scram"], "carol": secrets["md5"], "david": "plain"}}).open(t, "tcp")
	known := shape(t, d.addr, "alice")
	if !strings.Contains(known, CodeInvalidPassword) {
		t.Fatalf("known user:\n%s", known)
	}
	for _, user := range []string{"nobby", "carol", "david"} {
		if got := shape(t, d.addr, user); got != known {
			t.Errorf("user %s sees\n%s\na known user sees\n%s", user, got, known)
		}
	}
}

// A client that leaves at the prompt is no failed login.
func TestAuthenticateClientLeaves(t *testing.T) {
	for _, method := range []AuthMethod{AuthPassword, AuthMD5, AuthSCRAM} {
		for name, parting := range map[string][]byte{"silently": nil, "politely": AppendTerminate(nil)} {
			client, server := net.Pipe()
			done := make(chan error, 1)
			go func() {
				_, err := Authenticate(t.Context(), server, "app", method, Secret{})
				done <- err
			}()
			if _, _, err := (&link{conn: client, max: 1000}).read(); err != nil {
				t.Fatal(err)
			}
			if parting != nil {
				if _, err := client.Write(parting); err != nil {
					t.Fatal(err)
				}
			}
			_ = client.Close()
			if err := <-done; !errors.Is(err, io.EOF) || CodeOf(err) != "" {
				t.Errorf("%s, %s: %v, want EOF", method, name, err)
			}
		}
	}
}

// The context ends a login whose client says nothing.
func TestAuthenticateHeedsContext(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	reason := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := Authenticate(ctx, server, "app", AuthSCRAM, Secret{})
		done <- err
	}()
	if _, _, err := (&link{conn: client, max: 1000}).read(); err != nil {
		t.Fatal(err)
	}
	cancel(reason)
	if err := <-done; !errors.Is(err, reason) || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want the context's reason", err)
	}
}

// A client may send its choice of mechanism alone and wait to be asked.
func TestAuthenticateWithoutInitialResponse(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	secret, err := ParseSecret("s3cret")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := Authenticate(t.Context(), server, "app", AuthSCRAM, secret)
		done <- err
	}()
	l := &link{conn: client, max: 1000}
	c := &scramClient{password: "s3cret", gs2: "n,,"}
	choice := append([]byte(mechSCRAM), 0, 0xff, 0xff, 0xff, 0xff)
	for _, step := range []func(data []byte) []byte{
		func([]byte) []byte { return choice },
		func([]byte) []byte { return c.first() },
		func(data []byte) []byte {
			msg, err := c.final(data)
			if err != nil {
				t.Error(err)
			}
			return msg
		},
	} {
		_, body, err := l.read()
		if err != nil {
			t.Fatal(err)
		}
		if err := l.write(AppendSASLResponse(nil, step(body[4:]))); err != nil {
			t.Fatal(err)
		}
	}
	if _, body, err := l.read(); err != nil || c.verify(body[4:]) != nil {
		t.Errorf("server-final-message: %q, %v", body, err)
	}
	if _, body, err := l.read(); err != nil || !bytes.Equal(body, []byte{0, 0, 0, 0}) {
		t.Errorf("AuthenticationOk: %q, %v", body, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
