package pgwire

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/weirdb/weir/internal/lab"
)

// relayDoor is a door that logs its clients in at a server by RelayAuth, with
// what the last one taught.
type relayDoor struct {
	door
	server ConnectConfig

	resMu  sync.Mutex
	result RelayResult
}

func newRelayDoor(t *testing.T, accept AcceptConfig, server ConnectConfig) *relayDoor {
	t.Helper()
	r := &relayDoor{door: door{cfg: accept}, server: server}
	r.auth = r.relay
	r.open(t, "tcp")
	return r
}

func (r *relayDoor) relay(ctx context.Context, client net.Conn, s *Startup) error {
	cfg := r.server
	cfg.User = s.User
	server, err := Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer server.Close()
	result, err := RelayAuth(ctx, client, server, s.User, nil)
	r.resMu.Lock()
	r.result = result
	r.resMu.Unlock()
	if err != nil {
		return err
	}
	_, err = FinishLogin(ctx, server)
	return err
}

func (r *relayDoor) last() RelayResult {
	r.settle()
	r.resMu.Lock()
	defer r.resMu.Unlock()
	return r.result
}

func testRelayRealServer(t *testing.T, p *lab.Postgres) {
	ca := newAuthority(t)
	withTLS := AcceptConfig{TLS: &tls.Config{Certificates: []tls.Certificate{ca.issue("localhost")}}}
	same, err := tls.LoadX509KeyPair(p.ServerCert().Cert, p.ServerCert().Key)
	if err != nil {
		t.Fatal(err)
	}
	sameTLS := AcceptConfig{TLS: &tls.Config{Certificates: []tls.Certificate{same}}}
	tests := []struct {
		user       string
		accept     AcceptConfig
		serverMode TLSMode
		client     string
		method     AuthMethod
		shown      bool   // the password is, to weir
		want       string // psql's answer, or part of its error
	}{
		{"trusted", AcceptConfig{}, TLSDisable, "", AuthTrust, false, "trusted plain"},
		{"clear", AcceptConfig{}, TLSDisable, "", AuthPassword, true, "clear plain"},
		{"old", AcceptConfig{}, TLSDisable, "", AuthMD5, false, "old plain"},
		{"scram", AcceptConfig{}, TLSDisable, "", AuthSCRAM, false, "scram plain"},
		{"scram", AcceptConfig{}, TLSRequire, "", AuthSCRAM, false, "scram plain"},
		{"scram", withTLS, TLSDisable, "sslmode=require", AuthSCRAM, false, "scram tls"},
		{"scram", withTLS, TLSRequire, "sslmode=require channel_binding=disable", AuthSCRAM, true, "scram tls"},
		{"scram", withTLS, TLSRequire, "sslmode=require", AuthSCRAM, true, "scram tls"},
		{"scram", withTLS, TLSRequire, "sslmode=prefer", AuthSCRAM, true, "scram tls"},
		{"scram", withTLS, TLSRequire, "sslmode=require channel_binding=require", AuthSCRAM, false, "channel binding"},
		{"scram", sameTLS, TLSRequire, "sslmode=require channel_binding=require", AuthSCRAM, false, "scram tls"},
		{"secure", AcceptConfig{}, TLSDisable, "", AuthTrust, false, "no encryption"},
	}
	for _, tt := range tests {
		t.Run(strings.Join([]string{tt.user, string(tt.serverMode), tt.client}, "/"), func(t *testing.T) {
			d := newRelayDoor(t, tt.accept, ConnectConfig{Address: p.Addr(), Database: "postgres", TLSMode: tt.serverMode})
			info := conninfo(d.addr, "user="+tt.user+" "+tt.client)
			out, ok := psql(t, info, "PGPASSWORD="+realPassword)
			success := strings.HasPrefix(tt.want, tt.user+" ")
			if ok != success || !strings.Contains(out, tt.want) {
				t.Errorf("psql: %q, want %q; weir: %v", out, tt.want, d.lastErr())
			}
			got := d.last()
			if got.Method != tt.method {
				t.Errorf("method %s, want %s", got.Method, tt.method)
			}
			if (got.Keys != nil) != tt.shown || (got.Keys != nil && got.Keys.Password != realPassword) {
				t.Errorf("keys: %v", got.Keys)
			}
			if !success || tt.method == AuthTrust {
				return
			}
			out, ok = psql(t, info, "PGPASSWORD=wrong")
			if ok || !strings.Contains(out, "password authentication failed") || CodeOf(d.lastErr()) != CodeInvalidPassword {
				t.Errorf("wrong password: psql: %q; weir: %v", out, d.lastErr())
			}
		})
	}
}

// A server may send these instead of the expected message, and the client gets an error.
func TestRelayAuthRefuses(t *testing.T) {
	tests := []struct {
		name   string
		server []byte // and then the server goes away
		answer []byte // of the client, to the first request
		code   string // that the client is told
	}{
		{"Kerberos", appendAuth(nil, authGSS, nil), nil, CodeFeatureNotSupported},
		{"binding only", AppendAuthSASL(nil, mechSCRAMPlus), nil, CodeFeatureNotSupported},
		{"gone after a request", AppendAuthCleartext(nil), AppendPassword(nil, "x"), CodeConnectionFailure},
		{"client names PLUS all the same", AppendAuthSASL(nil, mechSCRAMPlus, mechSCRAM), AppendSASLInitial(nil, mechSCRAMPlus, []byte("p=x,,n=,r=a")), CodeInvalidAuthorization},
		{"client would have bound", AppendAuthSASL(nil, mechSCRAMPlus, mechSCRAM), AppendSASLInitial(nil, mechSCRAM, []byte("y,,n=,r=a")), CodeInvalidAuthorization},
		{"client sends nonsense", AppendAuthSASL(nil, mechSCRAM), AppendMessage(nil, ClientPassword, []byte("x")), CodeProtocolViolation},
		{"refused", AppendError(nil, NewFatal(CodeInvalidAuthorization, "no pg_hba.conf entry")), nil, CodeInvalidAuthorization},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client, near := net.Pipe()
			far, server := net.Pipe()
			defer client.Close()
			go func() {
				_, _ = server.Write(tt.server)
				if tt.answer != nil {
					hear(server)
				}
				_ = server.Close()
			}()
			done := make(chan error, 1)
			go func() {
				_, err := RelayAuth(t.Context(), near, far, "", nil)
				_ = far.Close()
				done <- err
			}()
			if tt.answer != nil {
				if _, _, err := (&link{conn: client, max: 1000}).read(); err != nil {
					t.Fatal(err)
				}
				mustWrite(t, client, tt.answer)
			}
			if e := mustReadError(t, client); e.Code != tt.code {
				t.Errorf("client is told %v, want SQLSTATE %s", e, tt.code)
			}
			if err := <-done; CodeOf(err) != tt.code {
				t.Errorf("returned %v, want SQLSTATE %s", err, tt.code)
			}
		})
	}
}

// A server that asks for OAUTHBEARER is answered by the client, also where weir knows what
// the server stores of a password.
func TestRelayAuthCarriesOAuth(t *testing.T) {
	client, near := net.Pipe()
	far, server := net.Pipe()
	defer client.Close()
	go func() {
		defer server.Close()
		_, _ = server.Write(AppendAuthSASL(nil, "OAUTHBEARER"))
		hear(server)
		_, _ = server.Write(AppendAuthOK(nil))
	}()
	done := make(chan RelayResult, 1)
	go func() {
		defer near.Close()
		res, err := RelayAuth(t.Context(), near, far, "u", new(Secret))
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	l := &link{conn: client, max: 1000}
	_, body, err := l.read()
	if err != nil || !bytes.Contains(body, []byte("OAUTHBEARER")) {
		t.Fatalf("client is asked for %q, %v", body, err)
	}
	mustWrite(t, client, AppendSASLInitial(nil, "OAUTHBEARER", []byte("n,,\x01auth=Bearer x\x01\x01")))
	if _, body, err := l.read(); err != nil || !bytes.Equal(body, make([]byte, 4)) {
		t.Errorf("client is told %q, %v; want that it is in", body, err)
	}
	if res := <-done; res.Method != AuthPassword {
		t.Errorf("method %q", res.Method)
	}
}

// A server that goes away before it has said anything leaves the client for another.
func TestRelayAuthLeavesTheClientToAnother(t *testing.T) {
	client, near := net.Pipe()
	far, server := net.Pipe()
	defer client.Close()
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := RelayAuth(t.Context(), near, far, "", nil); !errors.Is(err, ErrNoAnswer) { // a word to client would block
		t.Errorf("%v, want ErrNoAnswer", err)
	}
}

// So does one that says that it ends connections, or takes none; what it says is told
// later, if it is the last word.
func TestRelayAuthLeavesTheClientOfAServerThatStops(t *testing.T) {
	for _, code := range []string{CodeAdminShutdown, CodeCrashShutdown, CodeCannotConnectNow, CodeTooManyConnections} {
		client, near := net.Pipe()
		far, server := net.Pipe()
		defer client.Close()
		defer server.Close()
		go func() { _, _ = server.Write(AppendError(nil, NewFatal(code, "not now"))) }()
		if _, err := RelayAuth(t.Context(), near, far, "", nil); !errors.Is(err, ErrNoAnswer) || CodeOf(err) != code { // a word to client would block
			t.Errorf("%v, want ErrNoAnswer with SQLSTATE %s", err, code)
		}
	}
}

// Notices pass to the client, version negotiation does not: it is between weir
// and the server.
func TestRelayAuthCarriesNotices(t *testing.T) {
	client, near := net.Pipe()
	far, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	type outcome struct {
		result RelayResult
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		result, err := RelayAuth(t.Context(), near, far, "", nil)
		done <- outcome{result, err}
	}()
	notice := AppendNotice(nil, &Error{Severity: "NOTICE", Code: "00000", Message: "welcome"})
	go func() {
		_, _ = server.Write(AppendAuthOK(append(AppendNegotiateVersion(nil, Version30, nil), notice...)))
	}()
	l := &link{conn: client, max: 1000}
	for _, want := range []byte{ServerNotice, ServerAuth} {
		if typ, _, err := l.read(); err != nil || typ != want {
			t.Errorf("message %q, %v, want %q", typ, err, want)
		}
	}
	if got := <-done; got.err != nil || got.result.Method != AuthTrust || got.result.Version != Version30 {
		t.Errorf("%+v", got)
	}
}

func TestFinishLogin(t *testing.T) {
	ready := AppendReadyForQuery(nil, StatusIdle)
	notice := AppendNotice(nil, &Error{Severity: "WARNING", Code: "01000", Message: "collation version mismatch"})
	tests := []struct {
		name string
		sent []byte
		code string // of the error; "" for success
		want string // part of the error
	}{
		{"all there is", append(AppendBackendKeyData(AppendParameterStatus(notice, "TimeZone", "UTC"), 7, []byte("1234")), ready...), "", ""},
		{"refused", AppendError(nil, NewFatal(CodeTooManyConnections, "too many")), CodeTooManyConnections, "too many"},
		{"out of step", AppendParseComplete(nil), "", "before the server is ready"},
		{"bad status", []byte{'Z', 0, 0, 0, 5, '?'}, "", "malformed"},
		{"bad key", []byte{'K', 0, 0, 0, 5, '?'}, "", "malformed"},
		{"bad setting", []byte{'S', 0, 0, 0, 5, '?'}, "", "malformed"},
		{"bad error", []byte{'E', 0, 0, 0, 5, '?'}, "", "malformed"},
		{"bad notice", []byte{'N', 0, 0, 0, 5, '?'}, "", "malformed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			near, server := net.Pipe()
			defer near.Close()
			defer server.Close()
			go func() { _, _ = server.Write(append(tt.sent, "more"...)) }()
			b, err := FinishLogin(t.Context(), near)
			if tt.want != "" {
				if b != nil || CodeOf(err) != tt.code || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%+v, %v, want %q", b, err, tt.want)
				}
				return
			}
			if err != nil || b.PID != 7 || string(b.Secret) != "1234" || b.Param("TimeZone") != "UTC" || b.Param("DateStyle") != "" || len(b.Notices) != 1 {
				t.Fatalf("%+v, %v", b, err)
			}
			if got := mustRead(t, near, 4); string(got) != "more" {
				t.Errorf("behind ReadyForQuery: %q", got)
			}
		})
	}
}
