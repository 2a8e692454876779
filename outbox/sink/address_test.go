package sink

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseAddress(t *testing.T) {
	a, err := ParseAddress("kafka://us%3Aer:p%40ss%2Fw@h1:9092,h-2.example,[::1]:7/a%20b/c?x=1&y=%26", "kafka")
	if err != nil {
		t.Fatal(err)
	}
	user, password, given, err := a.Login()
	if user != "us:er" || password != "p@ss/w" || !given || err != nil {
		t.Errorf("login %q %q %v %v", user, password, given, err)
	}
	if diff := cmp.Diff([]string{"h1:9092", "h-2.example:1", "[::1]:7"}, a.HostPorts(1)); diff != "" {
		t.Errorf("hosts (-want +got)\n%s", diff)
	}
	if a.Path != "a b/c" || a.Params.Text("x", "") != "1" || a.Params.Text("y", "") != "&" || a.Params.Err() != nil {
		t.Errorf("path %q, left %v", a.Path, a.Params.left)
	}
}

func TestParseAddressNeverShowsAPassword(t *testing.T) {
	for _, raw := range []string{
		"kafka://u:geheim@h:port", "kafka://u:ge/heim@h", "kafka://u:geheim%zz@h", "kafka://u:geheim@", "kafka://u:geheim#@h",
		"http://u:geheim@h", "u:geheim@h", "kafka://u:123/geheim@h", "kafka://u:geheim@h/%zz", "kafka://u:geheim@h?a=%zz",
		"kafka://u:geheim@h,,i", "kafka://u:geheim@h:70000", "kafka://u:geheim@[::x]:1", "kafka://u:geheim@h:0",
	} {
		_, err := ParseAddress(raw, "kafka")
		if err == nil || strings.Contains(err.Error(), "heim") {
			t.Errorf("%s: %v, want an error without the password", raw, err)
		}
	}
}

func TestPasswordFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("ge heim\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := ParseAddress("kafka://u@h?password-file="+file, "kafka")
	if err != nil {
		t.Fatal(err)
	}
	if user, password, given, err := a.Login(); user != "u" || password != "ge heim" || !given || err != nil {
		t.Errorf("login %q %q %v %v", user, password, given, err)
	}
	for _, bad := range []string{"kafka://u:p@h?password-file=" + file, "kafka://u@h?password-file=/nowhere/at/all"} {
		a, err := ParseAddress(bad, "kafka")
		if err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := a.Login(); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

func TestParams(t *testing.T) {
	parse := func(query string) *Params {
		p, err := ParseParams(query)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := parse("n=7&d=5s&b=true&c=two")
	if n := p.Int("n", 0, 1, 9); n != 7 {
		t.Errorf("n %d", n)
	}
	if d := p.Duration("d", 0); d != 5*time.Second {
		t.Errorf("d %v", d)
	}
	if !p.Bool("b") || p.Bool("other") || p.Choice("c", "one", "two") != "two" || p.Choice("e", "one", "two") != "one" || p.Err() != nil {
		t.Errorf("rest %v, %v", p.left, p.Err())
	}
	for query, want := range map[string]string{
		"n=10": "1 to 9", "n=x": "1 to 9", "d=5": "time", "d=-5s": "time", "b=yes": "false or true", "c=x": "one or two", "o=x": "want one or two",
		"z=1&y=2": `unknown parameter "y", "z"`,
	} {
		p := parse(query)
		p.Int("n", 0, 1, 9)
		p.Duration("d", 0)
		p.Bool("b")
		p.Choice("c", "one", "two")
		p.Choice("o", "", "one", "two")
		if err := p.Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", query, err, want)
		}
	}
	if _, err := ParseParams("a=1&a=2"); err == nil {
		t.Error("a parameter may come twice")
	}
}

func FuzzParseAddress(f *testing.F) {
	for _, s := range []string{
		"kafka://u:p@h1:1,h2/path?x=1", "kafka://[::1]:9/", "kafka://", "kafka://h?%", "kafka://@", "kafka://h/%41?a=b&a=c",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		a, err := ParseAddress(raw, "kafka")
		if err != nil {
			return
		}
		if len(a.Hosts) == 0 {
			t.Fatal("no host")
		}
		for _, h := range a.HostPorts(9) {
			if !validHost(h) || strings.ContainsAny(h, "/@?# \n") {
				t.Fatalf("host %q", h)
			}
		}
		_ = a.Params.Err()
	})
}
