package pgwire

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// accept runs Accept on one end of a pipe and returns the other.
func accept(t *testing.T, cfg AcceptConfig) (client net.Conn, outcome func() (net.Conn, *Startup, error)) {
	t.Helper()
	client, server := net.Pipe()
	t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	type result struct {
		conn net.Conn
		s    *Startup
		err  error
	}
	done := make(chan result, 1)
	go func() {
		conn, s, err := Accept(t.Context(), server, cfg)
		done <- result{conn, s, err}
	}()
	return client, func() (net.Conn, *Startup, error) {
		r := <-done
		return r.conn, r.s, r.err
	}
}

func mustWrite(t *testing.T, w io.Writer, b []byte) {
	t.Helper()
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
}

func mustRead(t *testing.T, r io.Reader, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		t.Fatal(err)
	}
	return b
}

// mustReadError reads an ErrorResponse.
func mustReadError(t *testing.T, conn net.Conn) *Error {
	t.Helper()
	typ, body, err := (&link{conn: conn, max: maxServerMessage}).read()
	if err != nil || typ != ServerError {
		t.Fatalf("message %q, %v: want an ErrorResponse", typ, err)
	}
	e, err := ParseError(body)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

var gssRequest = binary.BigEndian.AppendUint32([]byte{0, 0, 0, 8}, codeGSS)

func TestAcceptReadsNotAByteTooMuch(t *testing.T) {
	client, outcome := accept(t, AcceptConfig{})
	mustWrite(t, client, gssRequest)
	if got := mustRead(t, client, 1); got[0] != 'N' {
		t.Errorf("GSSENCRequest answered %q", got)
	}
	mustWrite(t, client, AppendSSLRequest(nil))
	if got := mustRead(t, client, 1); got[0] != 'N' {
		t.Errorf("SSLRequest without TLS answered %q", got)
	}
	go func() { _, _ = client.Write(AppendSync(AppendStartup(nil, Version30, []Param{{"user", "app"}}))) }()
	conn, s, err := outcome()
	if err != nil || s.User != "app" || s.TLS != nil {
		t.Fatalf("%+v, %v", s, err)
	}
	if got := mustRead(t, conn, HeaderLen); !bytes.Equal(got, AppendSync(nil)) {
		t.Errorf("behind the startup packet: %q", got)
	}
}

func TestAcceptRefuses(t *testing.T) {
	ssl := AppendSSLRequest(nil)
	tests := []struct {
		name string
		sent [][]byte // each but the last is answered with one byte
		code string   // of the ErrorResponse
	}{
		{"no user", [][]byte{AppendStartup(nil, Version30, nil)}, CodeInvalidAuthorization},
		{"too long", [][]byte{{0, 0, 0x27, 0x11}}, CodeProtocolViolation}, // 10001
		{"too short", [][]byte{{0, 0, 0, 7}}, CodeProtocolViolation},
		{"negative length", [][]byte{{0xff, 0xff, 0xff, 0xff}}, CodeProtocolViolation},
		{"no terminator", [][]byte{{0, 0, 0, 10, 0, 3, 0, 0, 'u', 's'}}, CodeProtocolViolation},
		{"second SSLRequest", [][]byte{ssl, ssl}, CodeFeatureNotSupported},
		{"second GSSENCRequest", [][]byte{gssRequest, gssRequest}, CodeFeatureNotSupported},
		{"HTTP", [][]byte{[]byte("GET ")}, CodeProtocolViolation},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client, outcome := accept(t, AcceptConfig{})
			for i, packet := range tt.sent {
				mustWrite(t, client, packet)
				if i+1 < len(tt.sent) {
					mustRead(t, client, 1)
				}
			}
			if e := mustReadError(t, client); e.Code != tt.code || !e.Fatal() {
				t.Errorf("client is told: %v, want SQLSTATE %s", e, tt.code)
			}
			if conn, s, err := outcome(); err == nil || conn != nil || s != nil {
				t.Errorf("got %v, %+v, %v", conn, s, err)
			}
		})
	}
}

func TestAcceptHealthCheck(t *testing.T) {
	client, outcome := accept(t, AcceptConfig{})
	_ = client.Close()
	if _, _, err := outcome(); !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("client that says nothing: %v, want EOF", err)
	}
	client, outcome = accept(t, AcceptConfig{})
	mustWrite(t, client, []byte{0, 0, 0})
	_ = client.Close()
	if _, _, err := outcome(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("client that leaves in the middle: %v, want unexpected EOF", err)
	}
}

func TestAcceptGoodbye(t *testing.T) {
	client, outcome := accept(t, AcceptConfig{})
	go func() { _, _ = client.Write(AppendTerminate(nil)) }()
	if _, _, err := outcome(); !errors.Is(err, errGoodbye) {
		t.Errorf("client that leaves at once: %v", err)
	}
}

func TestAcceptTimeout(t *testing.T) {
	_, outcome := accept(t, AcceptConfig{Timeout: time.Millisecond})
	if _, _, err := outcome(); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no answer within 1ms") {
		t.Errorf("silent client: %v", err)
	}
}

func TestAcceptNegotiatesVersion(t *testing.T) {
	tests := []struct {
		asked, most, got uint32
		option           string
		negotiates       bool
	}{
		{Version30, 0, Version30, "", false},
		{Version32, 0, Version32, "", false},
		{Version32, Version30, Version30, "", true},
		{3<<16 | 9999, 0, Version32, "", true},
		{Version30, 0, Version30, "_pq_.magic", true},
	}
	for _, tt := range tests {
		client, outcome := accept(t, AcceptConfig{MaxVersion: tt.most})
		params := []Param{{"user", "app"}}
		if tt.option != "" {
			params = append(params, Param{tt.option, "1"})
		}
		mustWrite(t, client, AppendStartup(nil, tt.asked, params))
		if tt.negotiates {
			typ, body, err := (&link{conn: client, max: 1000}).read()
			if err != nil || typ != ServerNegotiateVersion {
				t.Fatalf("asked for %x: message %q, %v", tt.asked, typ, err)
			}
			version, unknown, err := ParseNegotiateVersion(body)
			if err != nil || version != tt.got || strings.Join(unknown, ",") != tt.option {
				t.Errorf("asked for %x: told %x %q, %v", tt.asked, version, unknown, err)
			}
		}
		if _, s, err := outcome(); err != nil || s.Version != tt.got || len(s.Params) != 1 {
			t.Errorf("asked for %x: %+v, %v", tt.asked, s, err)
		}
	}
}

// Bytes in plain text behind an SSLRequest (CVE-2021-23214) must not become
// part of the session.
func TestAcceptDropsBytesSmuggledBeforeTLS(t *testing.T) {
	ca := newAuthority(t)
	client, outcome := accept(t, AcceptConfig{TLS: &tls.Config{Certificates: []tls.Certificate{ca.issue("localhost")}}})
	go func() {
		_, _ = client.Write(AppendStartup(AppendSSLRequest(nil), Version30, []Param{{"user", "mallory"}}))
	}()
	if got := mustRead(t, client, 1); got[0] != 'S' {
		t.Fatalf("SSLRequest answered %q", got)
	}
	go func() { _, _ = io.Copy(io.Discard, client) }()
	if conn, s, err := outcome(); err == nil {
		t.Errorf("let in: %v %+v", conn, s)
	}
}

func TestAcceptDirectTLS(t *testing.T) {
	ca := newAuthority(t)
	cfg := AcceptConfig{TLS: &tls.Config{Certificates: []tls.Certificate{ca.issue("localhost")}}, TLSMode: TLSRequire}
	for _, protos := range [][]string{{"postgresql"}, nil, {"h2"}} {
		t.Run(fmt.Sprint(protos), func(t *testing.T) {
			client, outcome := accept(t, cfg)
			c := tls.Client(client, &tls.Config{RootCAs: ca.pool(), ServerName: "localhost", NextProtos: protos})
			go func() {
				_, _ = c.Write(AppendStartup(nil, Version30, []Param{{"user", "app"}}))
				_, _ = io.Copy(io.Discard, c)
			}()
			_, s, err := outcome()
			if fits := len(protos) > 0 && protos[0] == "postgresql"; fits != (err == nil) || (fits && s.TLS == nil) {
				t.Errorf("%+v, %v", s, err)
			}
		})
	}
	client, outcome := accept(t, AcceptConfig{})
	c := tls.Client(client, &tls.Config{RootCAs: ca.pool(), ServerName: "localhost", NextProtos: []string{"postgresql"}})
	go func() { _ = c.HandshakeContext(t.Context()) }()
	if _, _, err := outcome(); err == nil || !strings.Contains(err.Error(), "TLS is disabled") {
		t.Errorf("direct TLS where TLS is disabled: %v", err)
	}
}

func TestAcceptCancelRequest(t *testing.T) {
	ca := newAuthority(t)
	cfg := AcceptConfig{TLS: &tls.Config{Certificates: []tls.Certificate{ca.issue("localhost")}}}
	for _, mode := range []TLSMode{TLSDisable, TLSRequire} {
		cfg.TLSMode = mode
		d := (&door{cfg: cfg}).open(t, "tcp")
		for _, client := range []TLSMode{TLSDisable, TLSPrefer} {
			secret := []byte("a long secret of protocol 3.2")
			if err := Cancel(t.Context(), ConnectConfig{Address: d.addr, TLSMode: client}, 77, secret); err != nil {
				t.Errorf("door %s, client %s: %v", mode, client, err)
				continue
			}
			s := d.lastStartup()
			if s == nil || s.Kind != StartupCancel || s.CancelPID != 77 || !bytes.Equal(s.CancelSecret, secret) {
				t.Errorf("door %s, client %s: %+v", mode, client, s)
			}
			if wantTLS := mode == TLSRequire && client == TLSPrefer; (s.TLS != nil) != wantTLS {
				t.Errorf("door %s, client %s: TLS %v", mode, client, s.TLS != nil)
			}
		}
	}
}

// The certificate that channel binding speaks of is the one that was shown,
// wherever the config got it.
func TestChannelBindingFollowsTheCertificateShown(t *testing.T) {
	ca := newAuthority(t)
	one, two := ca.issue("one.test"), ca.issue("two.test")
	pick := func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if hello.ServerName == "two.test" {
			return &two, nil
		}
		return nil, nil
	}
	configs := map[string]*tls.Config{
		"list":     {Certificates: []tls.Certificate{one, two}},
		"callback": {Certificates: []tls.Certificate{one}, GetCertificate: pick},
		"config by client": {GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return &tls.Config{Certificates: []tls.Certificate{one}, GetCertificate: pick}, nil
		}},
	}
	for name, cfg := range configs {
		for _, host := range []string{"one.test", "two.test"} {
			t.Run(name+"/"+host, func(t *testing.T) {
				d := (&door{cfg: AcceptConfig{TLS: cfg}, method: AuthSCRAM, secrets: map[string]string{"app": "s3cret"}}).open(t, "tcp")
				b, err := Connect(t.Context(), ConnectConfig{
					Address: d.addr, User: "app", Password: "s3cret", TLSMode: TLSVerifyFull,
					TLSConfig: &tls.Config{RootCAs: ca.pool(), ServerName: host}, ChannelBinding: "require",
				})
				if err != nil {
					t.Fatal(err)
				}
				_ = b.Conn.Close()
			})
		}
	}
}

func TestAcceptPgxNewProtocol(t *testing.T) {
	for _, most := range []uint32{Version30, Version32} {
		d := (&door{cfg: AcceptConfig{MaxVersion: most}, method: AuthTrust}).open(t, "tcp")
		cfg, err := pgconn.ParseConfig(conninfo(d.addr, "user=app sslmode=disable max_protocol_version=3.2"))
		if err != nil {
			t.Fatal(err)
		}
		if out, ok := pgxAsk(t, cfg); !ok || out != "app plain" {
			t.Errorf("newest version %x: %q; weir: %v", most, out, d.lastErr())
		}
		if s := d.lastStartup(); s.Version != most {
			t.Errorf("newest version %x: speaks %x", most, s.Version)
		}
	}
}

// FuzzAccept throws whole byte streams at the door, the way that the network
// does.
func FuzzAccept(f *testing.F) {
	f.Add(AppendStartup(AppendSSLRequest(bytes.Clone(gssRequest)), Version32, []Param{{"user", "u"}, {"_pq_.x", ""}}))
	f.Add(AppendCancelRequest(nil, 1, []byte("1234")))
	f.Fuzz(func(t *testing.T, stream []byte) {
		s, err := (&acceptor{cfg: AcceptConfig{}.withDefaults(), conn: &script{in: bytes.NewReader(stream)}}).run(t.Context())
		if (s == nil) == (err == nil) {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

// FuzzLogin throws whole byte streams at weir as a client.
func FuzzLogin(f *testing.F) {
	ready := AppendReadyForQuery(AppendBackendKeyData(AppendParameterStatus(nil, "a", "b"), 1, []byte("1234")), StatusIdle)
	f.Add(append(AppendAuthOK(nil), ready...))
	f.Add(append(AppendAuthOK(AppendAuthMD5(nil, [4]byte{1, 2, 3, 4})), ready...))
	f.Add(AppendAuthSASLContinue(AppendAuthSASL(nil, mechSCRAM), []byte("r=x,s=YQ==,i=1")))
	f.Add(AppendError(nil, NewFatal(CodeInvalidPassword, "no")))
	f.Fuzz(func(t *testing.T, stream []byte) {
		cfg := ConnectConfig{User: "u", Keys: &ClientKeys{ClientKey: make([]byte, 32), ServerKey: make([]byte, 32)}}.withDefaults()
		l := &login{link: link{conn: &script{in: bytes.NewReader(stream)}, max: maxServerMessage}, cfg: cfg}
		b, err := l.run()
		if (b == nil) == (err == nil) {
			t.Errorf("%+v, %v", b, err)
		}
		if b != nil && b.Method == AuthSCRAM {
			t.Error("a server that cannot know the key is believed")
		}
	})
}

// script is a connection whose other side has already said all it will say.
type script struct {
	net.Conn
	in io.Reader
}

func (s *script) Read(p []byte) (int, error)       { return s.in.Read(p) }
func (s *script) Write(p []byte) (int, error)      { return len(p), nil }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }
func (s *script) Close() error                     { return nil }
