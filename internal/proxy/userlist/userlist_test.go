package userlist

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// user is what the lists of these tests hold.
type user struct {
	Name   string
	Secret pgwire.Secret
}

func account(name, text string) (user, error) {
	secret, err := pgwire.ParseSecret(text)
	return user{name, secret}, err
}

func TestParse(t *testing.T) {
	users, err := Parse("; PgBouncer's comment\n\n\"app\" \"pass word\"\n# ours\n  \"a \"\"b\"\"\"\t\"x\"\"y\" and more\n"+
		"\"md\" \"md50123456789abcdef0123456789abcdef\"\n\"nobody\" \"\"\n", account)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, u := range users {
		plain, _ := u.Secret.Plain()
		got = append(got, fmt.Sprintf("%s: %s %s", u.Name, u.Secret, plain))
	}
	md5Digits, _ := mustSecret(t, "md50123456789abcdef0123456789abcdef").Plain()
	want := []string{"app: plain password pass word", `a "b": plain password x"y`, "md: md5 secret " + md5Digits, "nobody: no secret "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("users (-want +got):\n%s", diff)
	}
	for text, want := range map[string]string{
		"app hush\n":                         `1: want "user" "secret"`,
		"\n\"app\"\n":                        "2: the user's secret is missing",
		"\"app\" \"hush\n":                   "1: the user's secret is missing",
		"\"\" \"hush\"":                      `1: want "user" "secret"`,
		"\"a\" \"hush\"\n\"a\" \"hush\"":     `2: user "a" is already in line 1`,
		"\"a\" \"SCRAM-SHA-256$hush:x$y:z\"": "1: parse SCRAM secret",
	} {
		if _, err := Parse(text, account); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("Parse(%q): %v, want %q and no secret", text, err, want)
		}
	}
}

func mustSecret(t *testing.T, text string) pgwire.Secret {
	t.Helper()
	s, err := pgwire.ParseSecret(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func FuzzParse(f *testing.F) {
	f.Add("\"app\" \"secret\"\n; comment\n\"a\"\"b\" \"md50123456789abcdef0123456789abcdef\"")
	f.Add("\"a\" \"SCRAM-SHA-256$4096:c2FsdA==$x:y\"")
	f.Fuzz(func(t *testing.T, text string) {
		users, err := Parse(text, account)
		if err != nil {
			return
		}
		// Files that were read can be written and read again.
		var b strings.Builder
		seen := map[string]bool{}
		for _, u := range users {
			if u.Name == "" || seen[u.Name] {
				t.Fatalf("user %q twice or without a name", u.Name)
			}
			seen[u.Name] = true
			fmt.Fprintf(&b, "\"%s\" \"x\"\n", strings.ReplaceAll(u.Name, `"`, `""`))
		}
		again, err := Parse(b.String(), account)
		if err != nil || len(again) != len(users) {
			t.Fatalf("%d users, written and read again: %d, %v", len(users), len(again), err)
		}
	})
}
