package pgwire

import (
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// The example exchange of RFC 7677 section 3: user "user", password "pencil".
const (
	rfcClientNonce = "rOprNGfwEbeRWgbNEkqO"
	rfcServerNonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
	rfcSalt        = "W22ZaJ0SNY7soEsUEjb6gQ=="
	rfcFirst       = "n,,n=user,r=" + rfcClientNonce
	rfcServerFirst = "r=" + rfcClientNonce + rfcServerNonce + ",s=" + rfcSalt + ",i=4096"
	rfcFinal       = "c=biws,r=" + rfcClientNonce + rfcServerNonce + ",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
	rfcServerFinal = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
)

func TestSCRAMServerSpeaksRFC7677(t *testing.T) {
	salt, _ := base64.StdEncoding.DecodeString(rfcSalt)
	keys, err := newSCRAMKeys("pencil", salt, 4096)
	if err != nil {
		t.Fatal(err)
	}
	s := &scramServer{keys: keys, nonce: rfcServerNonce}
	if got, err := s.first([]byte(rfcFirst)); err != nil || string(got) != rfcServerFirst {
		t.Fatalf("first: %q, %v", got, err)
	}
	got, clientKey, err := s.final([]byte(rfcFinal))
	if err != nil || string(got) != rfcServerFinal {
		t.Fatalf("final: %q, %v", got, err)
	}
	// The key that the proof revealed opens another exchange.
	c := &scramClient{keys: &ClientKeys{ClientKey: clientKey, ServerKey: keys.server}, gs2: "n,,"}
	if err := exchange(c, &scramServer{keys: keys}); err != nil {
		t.Errorf("login with the keys of another login: %v", err)
	}
}

func TestSCRAMClientSpeaksRFC7677(t *testing.T) {
	// PostgreSQL clients leave the user name empty; the example does not.
	c := &scramClient{password: "pencil", gs2: "n,,", nonce: rfcClientNonce, bare: strings.TrimPrefix(rfcFirst, "n,,")}
	if got, err := c.final([]byte(rfcServerFirst)); err != nil || string(got) != rfcFinal {
		t.Fatalf("final: %q, %v", got, err)
	}
	if err := c.verify([]byte(rfcServerFinal)); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "v=", "", "e=other-error", "v=****"} {
		if err := c.verify([]byte(bad)); err == nil {
			t.Errorf("server-final-message %q is believed", bad)
		}
	}
}

// exchange runs both sides against each other.
func exchange(c *scramClient, s *scramServer) error {
	msg, err := s.first(c.first())
	if err != nil {
		return fmt.Errorf("server first: %w", err)
	}
	if msg, err = c.final(msg); err != nil {
		return fmt.Errorf("client final: %w", err)
	}
	if msg, _, err = s.final(msg); err != nil {
		return fmt.Errorf("server final: %w", err)
	}
	return c.verify(msg)
}

func TestSCRAMExchange(t *testing.T) {
	keys, err := newSCRAMKeys("secret", []byte("salt"), 2)
	if err != nil {
		t.Fatal(err)
	}
	plus := "p=tls-server-end-point,,"
	tests := []struct {
		name   string
		client scramClient
		server scramServer
		want   string // part of the error; "" for success
	}{
		{"right password", scramClient{password: "secret", gs2: "n,,"}, scramServer{keys: keys}, ""},
		{"wrong password", scramClient{password: "Secret", gs2: "n,,"}, scramServer{keys: keys}, "wrong password"},
		{"mock user, right password", scramClient{password: "secret", gs2: "n,,"}, scramServer{keys: keys, mock: true}, "wrong password"},
		{"bound channel", scramClient{password: "secret", gs2: plus, binding: []byte("cert")}, scramServer{keys: keys, binding: []byte("cert"), plus: true}, ""},
		{"man in the middle", scramClient{password: "secret", gs2: plus, binding: []byte("other cert")}, scramServer{keys: keys, binding: []byte("cert"), plus: true}, "channel binding check failed"},
		{"server offers no binding", scramClient{password: "secret", gs2: "y,,"}, scramServer{keys: keys}, ""},
		{"the offer was hidden", scramClient{password: "secret", gs2: "y,,"}, scramServer{keys: keys, binding: []byte("cert")}, "it does"},
		{"client wants no binding", scramClient{password: "secret", gs2: "n,,"}, scramServer{keys: keys, binding: []byte("cert")}, ""},
		{"binding without PLUS", scramClient{password: "secret", gs2: plus}, scramServer{keys: keys, binding: []byte("cert")}, "channel binding"},
		{"PLUS without binding", scramClient{password: "secret", gs2: "n,,"}, scramServer{keys: keys, binding: []byte("cert"), plus: true}, "channel binding"},
		{"authorization identity", scramClient{password: "secret", gs2: "n,a=root,"}, scramServer{keys: keys}, "authorization identity"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := exchange(&tt.client, &tt.server)
			if (err == nil) != (tt.want == "") || (err != nil && !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestSCRAMServerRefusesNonsense(t *testing.T) {
	for _, first := range []string{
		"", ",", ",,", "n", "n,", "n,,", "n,,n=", "n,,n=,r=", "n,,n=,r=\x7f", "n,,n=,r=a b", "n,,m=x,n=,r=a", "x,,n=,r=a", "p=tls-unique,,n=,r=a", "n,,n=,r=a\x00",
	} {
		if got, err := (&scramServer{}).first([]byte(first)); CodeOf(err) != CodeProtocolViolation {
			t.Errorf("client-first-message %q: %q, %v", first, got, err)
		}
	}
	keys, err := newSCRAMKeys("secret", []byte("salt"), 2)
	if err != nil {
		t.Fatal(err)
	}
	proof := ",p=" + base64.StdEncoding.EncodeToString(make([]byte, 32))
	for _, tt := range []struct{ msg, code string }{
		{"", CodeProtocolViolation},
		{"c=biws,r=as", CodeProtocolViolation},
		{"c=biws" + proof, CodeProtocolViolation},
		{"c=eSws,r=as" + proof, CodeInvalidAuthorization}, // another header than before
		{"c=biws,r=ax" + proof, CodeProtocolViolation},
		{"c=biws,r=as,p=xx", CodeProtocolViolation},
		{"c=biws,r=as,p=****", CodeProtocolViolation},
	} {
		s := &scramServer{keys: keys, nonce: "s"}
		if _, err := s.first([]byte("n,,n=,r=a")); err != nil {
			t.Fatal(err)
		}
		if got, _, err := s.final([]byte(tt.msg)); CodeOf(err) != tt.code {
			t.Errorf("client-final-message %q: %q, %v", tt.msg, got, err)
		}
	}
}

func TestSCRAMClientRefusesNonsense(t *testing.T) {
	for _, msg := range []string{
		"", "r=ab", "r=ab,s=YQ==", "r=a,s=YQ==,i=1", "r=xb,s=YQ==,i=1", "r=ab,s=,i=1", "r=ab,s=*,i=1", "r=ab,s=YQ==,i=0",
		"r=ab,s=YQ==,i=-1", "r=ab,s=YQ==,i=x", "r=ab,s=YQ==,i=2000000000", "m=x,r=ab,s=YQ==,i=1",
	} {
		c := &scramClient{password: "x", gs2: "n,,", nonce: "a"}
		c.first()
		if got, err := c.final([]byte(msg)); CodeOf(err) != CodeProtocolViolation {
			t.Errorf("server-first-message %q: %q, %v", msg, got, err)
		}
	}
}

func FuzzSCRAM(f *testing.F) {
	f.Add([]byte(rfcFirst), []byte(rfcFinal), []byte(rfcServerFirst), []byte(rfcServerFinal))
	keys, err := newSCRAMKeys("secret", []byte("salt"), 1)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, first, final, serverFirst, serverFinal []byte) {
		s := &scramServer{keys: keys}
		if _, err := s.first(first); err == nil {
			if _, _, err := s.final(final); err == nil {
				t.Error("a stranger got in")
			}
		}
		c := &scramClient{keys: &ClientKeys{ClientKey: make([]byte, 32), ServerKey: keys.server}, gs2: "n,,"}
		c.first()
		_, _ = c.final(serverFirst)
		if c.verify(serverFinal) == nil {
			t.Error("a stranger is believed to be the server")
		}
	})
}

// saslprepTests are passwords and what SCRAM hashes. TestConnectRealServer compares them
// with PostgreSQL.
var saslprepTests = []struct{ in, want string }{
	// RFC 4013 section 3.
	{"I\u00adX", "IX"},
	{"user", "user"},
	{"USER", "USER"},
	{"\u00aa", "a"},
	{"\u2168", "IX"},
	// Refused by the RFC, used as they are by PostgreSQL.
	{"\u0007", "\u0007"},
	{"\u0627\u0031", "\u0627\u0031"},
	{"\u00e4\u0007", "\u00e4\u0007"},
	// Spaces, decomposed letters, ligatures; unassigned in Unicode 3.2.
	{"a\u00a0b\u3000c", "a b c"},
	{"a\u0308", "\u00e4"},
	{"\ufb01", "fi"},
	{"\ufb01\U0001f600", "\ufb01\U0001f600"},
	{"\u0627\u0628", "\u0627\u0628"},
	{"\u0627a\u0628", "\u0627a\u0628"},
	{"a\u1806b", "ab"},
	{"\xff\xfe", "\xff\xfe"},
	{"\u00ad", "\u00ad"},
	{"", ""},
	// PostgreSQL checks characters before it normalizes them: a prohibited or unassigned one
	// may become one that is allowed, and a left-to-right one a right-to-left one.
	{"\u32ff", "\u32ff"},
	{"a\u0340", "a\u0340"},
	{"\u0132\U0001f130", "\u0132\U0001f130"},
	{"a\u2135", "a\u05d0"},
	// It maps a zero width space to a space; stringprep's own profile drops it.
	{"a\u200bb", "a b"},
}

func TestSASLprep(t *testing.T) {
	for _, tt := range saslprepTests {
		if got := preparePassword(tt.in); got != tt.want {
			t.Errorf("preparePassword(%+q) = %+q, want %+q", tt.in, got, tt.want)
		}
	}
}

func TestParseSecret(t *testing.T) {
	const scram = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
	tests := []struct {
		in, kind string
		fails    bool
	}{
		{"", "no secret", false},
		{"hunter2", "plain password", false},
		{"md5f7e5c1a5f5b6d7c8a9b0c1d2e3f40516", "md5 secret", false},
		{"md5F7E5C1A5F5B6D7C8A9B0C1D2E3F40516", "md5 secret", false},
		{"md5 is old", "plain password", false},
		{"md5xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "plain password", false},
		{scram, "SCRAM secret", false},
		{"SCRAM-SHA-256$", "no secret", true},
		{"SCRAM-SHA-256$0:YQ==$YQ==:YQ==", "no secret", true},
		{"SCRAM-SHA-256$4096:YQ==$YQ==:YQ==", "no secret", true},
		{strings.Replace(scram, "W22", "***", 1), "no secret", true},
		{strings.Replace(scram, "4096", "99999999999", 1), "no secret", true},
	}
	for _, tt := range tests {
		s, err := ParseSecret(tt.in)
		if s.String() != tt.kind || (err != nil) != tt.fails {
			t.Errorf("ParseSecret(%q) = %v, %v", tt.in, s, err)
		}
		if err != nil && len(tt.in) > 20 && strings.Contains(err.Error(), tt.in[14:]) {
			t.Errorf("the error quotes the secret: %v", err)
		}
	}
	// The RFC's password gives the RFC's keys.
	s, err := ParseSecret(scram)
	if err != nil || !s.matches("user", "pencil") || s.matches("user", "Pencil") {
		t.Errorf("SCRAM secret: %v", err)
	}
}

func FuzzParseSecret(f *testing.F) {
	f.Add("SCRAM-SHA-256$4096:YQ==$YQ==:YQ==")
	f.Add("md5f7e5c1a5f5b6d7c8a9b0c1d2e3f40516")
	f.Fuzz(func(t *testing.T, in string) {
		s, err := ParseSecret(in)
		if (err != nil || in == "") != s.IsZero() {
			t.Errorf("ParseSecret(%q) = %v, %v", in, s, err)
		}
	})
}

func TestSecretsDoNotPrint(t *testing.T) {
	secret, err := ParseSecret("hunter2")
	if err != nil {
		t.Fatal(err)
	}
	cfg := ConnectConfig{Address: "db:5432", User: "app", Password: "hunter2", Keys: &ClientKeys{Password: "hunter2", ClientKey: []byte("hunter2")}}
	var out strings.Builder
	log := slog.New(slog.NewJSONHandler(&out, nil))
	log.Info("x", "keys", cfg.Keys, "cfg", cfg, "secret", secret)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		fmt.Fprintf(&out, verb+verb+verb, secret, cfg, cfg.Keys)
	}
	if got := out.String(); strings.Contains(got, "hunter2") || strings.Contains(got, "aHVudGVyMg") {
		t.Errorf("a secret is printed: %s", got)
	}
}

func TestMockSaltIsStable(t *testing.T) {
	a, again, b := mockSalt()("a"), mockSalt()("a"), mockSalt()("b")
	if string(a) != string(again) || string(a) == string(b) || len(a) != scramSaltLen {
		t.Errorf("salts of unknown users: %x, %x, %x", a, again, b)
	}
}

func TestErrProofIsNotAServerError(t *testing.T) {
	if err := fmt.Errorf("x: %w", errProof); CodeOf(err) != "" || !errors.Is(err, errProof) {
		t.Error("errProof must stay inside weir: what the client is told is decided in one place")
	}
}
