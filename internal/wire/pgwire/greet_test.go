package pgwire

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
)

// A said is what a client was told and what it was taken for.
type said struct {
	told    string
	user    string
	kind    StartupKind
	version uint32
	err     error
	rest    int // bytes that were not taken
}

// takeAll has a greeter take bytes, some at a time.
func takeAll(g *Greeter, stream []byte, step int) (got said) {
	var have []byte
	for i := 0; ; i += step {
		if i < len(stream) {
			have = append(have, stream[i:min(i+step, len(stream))]...)
		}
		for {
			n, out, s, err := g.Take(have)
			got.told += string(out)
			have = have[n:]
			if s != nil {
				got.user, got.kind, got.version = s.User, s.Kind, s.Version
			}
			if err != nil || s != nil {
				got.err, got.rest = err, len(stream)-i-step+len(have)
				if i+step > len(stream) {
					got.rest = len(have)
				}
				return got
			}
			if n == 0 {
				break
			}
		}
		if i >= len(stream) {
			got.rest = len(have)
			return got
		}
	}
}

// However a client's bytes come, a greeter makes the same of them.
func TestGreeter(t *testing.T) {
	startup := AppendStartup(nil, Version30, []Param{{"user", "app"}})
	newer := AppendStartup(nil, Version32+1, []Param{{"user", "app"}, {"_pq_.x", "1"}})
	negotiated := string(AppendNegotiateVersion(nil, Version32, []string{"_pq_.x"}))
	fatal := func(code, message string) string {
		e := NewFatal(code, "%s", message)
		return string(AppendError(nil, e))
	}
	noTLS := NewFatal(CodeInvalidAuthorization, "connection without TLS refused for user %q", "app")
	noTLS.Hint = "Connect with sslmode=require or stronger."
	key := []byte{0, 0, 0, 16, 4, 210, 22, 46, 0, 0, 0, 7, 1, 2, 3, 4}
	with := AcceptConfig{TLSMode: TLSPrefer}
	for _, c := range []struct {
		name   string
		cfg    AcceptConfig
		local  bool
		stream []byte
		want   said
	}{
		{"startup", AcceptConfig{}, false, startup, said{user: "app", version: Version30}},
		{"TLS is declined", AcceptConfig{}, false, append(AppendSSLRequest(nil), startup...), said{told: "N", user: "app", version: Version30}},
		{"GSS is declined", AcceptConfig{}, false, append(bytes.Clone(gssRequest), startup...), said{told: "N", user: "app", version: Version30}},
		{"both are declined", AcceptConfig{}, false, append(append(bytes.Clone(gssRequest), AppendSSLRequest(nil)...), startup...), said{told: "NN", user: "app", version: Version30}},
		{"TLS on a Unix socket", with, true, append(AppendSSLRequest(nil), startup...), said{told: "N", user: "app", version: Version30}},
		{"TLS", with, false, AppendSSLRequest(nil), said{err: ErrWantsTLS, rest: 8}},
		{"TLS behind GSS", with, false, append(bytes.Clone(gssRequest), AppendSSLRequest(nil)...), said{told: "N", err: ErrWantsTLS, rest: 8}},
		{"TLS without a request", with, false, []byte{0x16, 3, 1}, said{err: ErrWantsTLS}},
		{"a newer protocol", AcceptConfig{}, false, newer, said{told: negotiated, user: "app", version: Version32}},
		{"cancel", AcceptConfig{}, false, key, said{kind: StartupCancel}},
		{"TLS is demanded", AcceptConfig{TLSMode: TLSRequire}, false, startup, said{told: string(AppendError(nil, noTLS)), err: noTLS}},
		{"TLS twice", AcceptConfig{}, false, append(AppendSSLRequest(nil), AppendSSLRequest(nil)...), said{told: "N" + fatal(CodeFeatureNotSupported, "unsupported frontend protocol 1234.5679: weir speaks 3.0 to 3.2"), err: errors.ErrUnsupported}},
		{"too long", AcceptConfig{MaxStartup: 100}, false, []byte{0, 0, 0, 101, 0, 3, 0, 0}, said{told: fatal(CodeProtocolViolation, "invalid startup packet"), err: ErrMalformed}},
		{"too short", AcceptConfig{}, false, []byte{0, 0, 0, 7, 0, 3, 0, 0}, said{told: fatal(CodeProtocolViolation, "invalid startup packet"), err: ErrMalformed}},
		{"goodbye", AcceptConfig{}, false, AppendTerminate(nil), said{err: errGoodbye}},
		{"no user", AcceptConfig{}, false, AppendStartup(nil, Version30, nil), said{told: fatal(CodeInvalidAuthorization, "no PostgreSQL user name specified in startup packet"), err: errors.ErrUnsupported}},
		{"nothing", AcceptConfig{}, false, nil, said{}},
		{"half of it", AcceptConfig{}, false, startup[:len(startup)/2], said{rest: len(startup) / 2}},
	} {
		for _, step := range []int{1, 3, 7, 4096} {
			t.Run(fmt.Sprintf("%s, %d bytes at a time", c.name, step), func(t *testing.T) {
				got := takeAll(NewGreeter(c.cfg, c.local), c.stream, step)
				if got.told != c.want.told || got.user != c.want.user || got.kind != c.want.kind || got.version != c.want.version {
					t.Errorf("got %+v, want %+v", got, c.want)
				}
				switch {
				case (got.err == nil) != (c.want.err == nil):
					t.Errorf("error %v, want %v", got.err, c.want.err)
				case errors.Is(c.want.err, ErrWantsTLS) != errors.Is(got.err, ErrWantsTLS):
					t.Errorf("error %v, want %v", got.err, c.want.err)
				case c.want.rest > 0 && got.rest != c.want.rest:
					t.Errorf("%d bytes were left, want %d", got.rest, c.want.rest)
				}
			})
		}
	}
}

// A recorder is a script that keeps what it is told.
type recorder struct {
	script
	out bytes.Buffer
}

func (r *recorder) Write(p []byte) (int, error) { return r.out.Write(p) }

// FuzzGreeter has a greeter and Accept hear the same, and a greeter byte by byte.
func FuzzGreeter(f *testing.F) {
	f.Add(AppendStartup(AppendSSLRequest(bytes.Clone(gssRequest)), Version32, []Param{{"user", "u"}, {"_pq_.x", ""}}))
	f.Add(AppendStartup(nil, Version30, []Param{{"user", "u"}, {"database", "d"}}))
	f.Add([]byte{0, 0, 0, 16, 4, 210, 22, 46, 0, 0, 0, 7, 1, 2, 3, 4})
	f.Add([]byte{0x16, 3, 1})
	f.Fuzz(func(t *testing.T, stream []byte) {
		whole := takeAll(NewGreeter(AcceptConfig{}, false), stream, len(stream)+1)
		bytewise := takeAll(NewGreeter(AcceptConfig{}, false), stream, 1)
		if whole.told != bytewise.told || whole.user != bytewise.user || whole.kind != bytewise.kind || (whole.err == nil) != (bytewise.err == nil) {
			t.Errorf("at once %+v, byte by byte %+v", whole, bytewise)
		}
		if errors.Is(whole.err, ErrWantsTLS) {
			return // what Accept alone goes on with
		}
		conn := &recorder{script: script{in: bytes.NewReader(stream)}}
		a := &acceptor{cfg: AcceptConfig{}.withDefaults(), conn: conn}
		s, err := a.run(t.Context())
		if err != nil {
			a.refuse(err)
		}
		if told := conn.out.String(); told != whole.told {
			t.Errorf("Accept told %q, the greeter %q", told, whole.told)
		}
		if (err == nil) != (whole.err == nil && (whole.user != "" || whole.kind == StartupCancel)) || err == nil && s.User != whole.user {
			t.Errorf("Accept: %+v, %v; the greeter %+v", s, err, whole)
		}
	})
}

// Byte by byte, an exchange takes the same answers.
func TestExchangeByteByByte(t *testing.T) {
	secret, err := ParseSecret("secret")
	if err != nil {
		t.Fatal(err)
	}
	for _, method := range []AuthMethod{AuthPassword, AuthMD5, AuthSCRAM} {
		for _, password := range []string{"secret", "wrong"} {
			t.Run(string(method)+" "+password, func(t *testing.T) {
				client, server := net.Pipe()
				defer client.Close()
				defer server.Close()
				told := make(chan error, 1)
				go func() {
					told <- (&login{link: link{conn: client, max: maxServerMessage}, cfg: ConnectConfig{User: "app", Password: password, Keys: new(ClientKeys)}}).authenticate()
				}()
				x := NewExchange("app", method, secret, nil)
				if slow := method == AuthSCRAM && !secret.derived.Load(); x.Slow() != slow {
					t.Errorf("slow: %v, want %v", !slow, slow)
				}
				out, err := x.Begin()
				for err == nil && out != nil {
					if _, err := server.Write(out); err != nil {
						t.Fatal(err)
					}
					var have []byte
					for n := 0; n == 0 && err == nil; {
						b := make([]byte, 1)
						if _, err := server.Read(b); err != nil {
							t.Fatal(err)
						}
						have = append(have, b...)
						if n, out, err = x.AnswerIn(have); n != 0 && n != len(have) {
							t.Fatalf("%d of %d bytes were taken", n, len(have))
						}
					}
				}
				e, why := x.Refusal(err)
				if password == "wrong" {
					if e == nil || e.Code != CodeInvalidPassword || !errors.Is(why, errProof) {
						t.Errorf("refusal %v, %v", e, why)
					}
					_, _ = server.Write(AppendError(nil, e))
					if err := <-told; CodeOf(err) != CodeInvalidPassword {
						t.Errorf("the client was told %v", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				keys, ok := x.Proved()
				if _, err := server.Write(ok); err != nil {
					t.Fatal(err)
				}
				if err := <-told; err != nil {
					t.Errorf("the client: %v", err)
				}
				if keys == nil || keys.Password != "secret" {
					t.Errorf("keys: %v", keys)
				}
			})
		}
	}
	if slices.ContainsFunc([]AuthMethod{AuthTrust, AuthMD5}, func(m AuthMethod) bool { return NewExchange("app", m, secret, nil).Slow() }) {
		t.Error("what derives no keys is said to be slow")
	}
}

// A message that is no answer ends an exchange.
func TestExchangeRefusesOtherMessages(t *testing.T) {
	for _, c := range []struct {
		name string
		p    []byte
	}{
		{"a query", []byte{'Q', 0, 0, 0, 5, 0}},
		{"too short", []byte{'p', 0, 0, 0, 3}},
		{"too long", []byte{'p', 0x7f, 0, 0, 0}},
		{"farewell", []byte{'X', 0, 0, 0, 4}},
	} {
		x := NewExchange("app", AuthMD5, Secret{}, nil)
		if _, err := x.Begin(); err != nil {
			t.Fatal(err)
		}
		if n, out, err := x.AnswerIn(c.p); err == nil || n != 0 || out != nil {
			t.Errorf("%s: %d, %q, %v", c.name, n, out, err)
		}
	}
}
