package pgwire

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseStartup(t *testing.T) {
	params := []Param{{"user", "app"}, {"application_name", "a"}, {"database", "db"}, {"application_name", "b"}}
	s, unknown, err := ParseStartup(AppendStartup(nil, Version30, params)[4:])
	if err != nil || len(unknown) != 0 {
		t.Fatalf("%v, unknown %q", err, unknown)
	}
	want := &Startup{Version: Version30, Params: params, User: "app", Database: "db"}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := s.Param("application_name"); got != "b" {
		t.Errorf("the last value wins: %q", got)
	}

	s, unknown, err = ParseStartup(AppendStartup(nil, Version32+5, []Param{{"user", "app"}, {"_pq_.x", "1"}})[4:])
	if err != nil || s.Database != "app" || len(s.Params) != 1 || !cmp.Equal(unknown, []string{"_pq_.x"}) {
		t.Errorf("%+v, unknown %q, %v", s, unknown, err)
	}

	s, _, err = ParseStartup(AppendCancelRequest(nil, 7, []byte("secret"))[4:])
	if err != nil || s.Kind != StartupCancel || s.CancelPID != 7 || string(s.CancelSecret) != "secret" {
		t.Errorf("cancel: %+v, %v", s, err)
	}
}

func TestParseStartupRefuses(t *testing.T) {
	tests := []struct {
		name   string
		packet []byte
		code   string // "" for ErrMalformed
	}{
		{"no user", AppendStartup(nil, Version30, []Param{{"database", "db"}}), CodeInvalidAuthorization},
		{"empty user", AppendStartup(nil, Version30, []Param{{"user", ""}}), CodeInvalidAuthorization},
		{"version 2", AppendStartup(nil, 2<<16, nil), CodeFeatureNotSupported},
		{"version 4", AppendStartup(nil, 4<<16, nil), CodeFeatureNotSupported},
		{"HTTP", []byte("GET / HTTP/1.1\r\n\r\n"), CodeFeatureNotSupported},
		{"short cancel key", AppendCancelRequest(nil, 1, []byte("123")), ""},
		{"long cancel key", AppendCancelRequest(nil, 1, make([]byte, 257)), ""},
	}
	for _, tt := range tests {
		s, _, err := ParseStartup(tt.packet[4:])
		if s != nil || CodeOf(err) != tt.code || (tt.code == "" && !errors.Is(err, ErrMalformed)) {
			t.Errorf("%s: %+v, %v", tt.name, s, err)
		}
	}
}

func TestParseOptions(t *testing.T) {
	tests := []struct {
		in   string
		want []Param
		code string
	}{
		{"", nil, ""},
		{"  ", nil, ""},
		{"-c a=b --c=d", []Param{{"a", "b"}, {"c", "d"}}, ""},
		{"-ca=b\t-c\n c=d=e", []Param{{"a", "b"}, {"c", "d=e"}}, ""},
		{"--search-path=a,b", []Param{{"search_path", "a,b"}}, ""},
		{`-c search_path=a,\ b\\c`, []Param{{"search_path", `a, b\c`}}, ""},
		{`-c a=`, []Param{{"a", ""}}, ""},
		{`-c a=b\`, []Param{{"a", "b"}}, ""},
		{"-c", nil, CodeSyntaxError},
		{"-c a", nil, CodeSyntaxError},
		{"-c =b", nil, CodeSyntaxError},
		{"--a", nil, CodeSyntaxError},
		{"-S 64", nil, CodeFeatureNotSupported},
		{"a=b", nil, CodeFeatureNotSupported},
	}
	for _, tt := range tests {
		got, err := ParseOptions(tt.in)
		if CodeOf(err) != tt.code || !cmp.Equal(got, tt.want) {
			t.Errorf("ParseOptions(%q) = %v, %v", tt.in, got, err)
		}
	}
}

func FuzzParseOptions(f *testing.F) {
	f.Add(`-c a=b\ c --d-e=f`)
	f.Fuzz(func(t *testing.T, in string) {
		params, err := ParseOptions(in)
		if err != nil {
			return
		}
		again, err := ParseOptions(FormatOptions(params))
		if diff := cmp.Diff(params, again); err != nil || diff != "" {
			t.Errorf("%q written as %q: %v\n%s", in, FormatOptions(params), err, diff)
		}
	})
}

func TestAcceptConfigValidate(t *testing.T) {
	for _, tt := range []struct {
		cfg  AcceptConfig
		want string
	}{
		{AcceptConfig{}, ""},
		{AcceptConfig{TLSMode: "maybe"}, `TLS mode "maybe"`},
		{AcceptConfig{TLSMode: TLSRequire}, "needs a server certificate"},
	} {
		err := tt.cfg.Validate()
		if (err == nil) != (tt.want == "") || (err != nil && !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%+v: %v, want %q", tt.cfg, err, tt.want)
		}
	}
}

// FormatOptions is the reverse of ParseOptions: it writes settings in the form
// of the "options" parameter.
func FormatOptions(settings []Param) string {
	var b strings.Builder
	for i, p := range settings {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString("-c ")
		for _, c := range []byte(fmt.Sprintf("%s=%s", p.Name, p.Value)) {
			if c == '\\' || strings.IndexByte(" \t\n\r\v\f", c) >= 0 {
				b.WriteByte('\\')
			}
			b.WriteByte(c)
		}
	}
	return b.String()
}
