package core_test

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/core"
)

// A hashed is a secret: a password, or "hash:" and something.
type hashed string

func (h hashed) Plain() (string, bool) { return string(h), !strings.HasPrefix(string(h), "hash:") }

// A key is what logs in.
type key struct{ password, hash string }

func credentials() *core.Credentials[hashed, key] {
	return core.NewCredentials(
		func(password string) *key { return &key{password: password} },
		func(k *key) bool { return k.password != "" },
		func(s string) (hashed, error) { return hashed(s), nil })
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	c := credentials()
	keyOf := func(user string) key {
		if k := c.Keys(user); k != nil {
			return *k
		}
		return key{}
	}
	c.List([]core.User[hashed]{{Name: "plain", Secret: "p"}, {Name: "hashed", Secret: "hash:1"}}, "dsn", "d")
	learned := &key{hash: "1"}
	c.Learn("hashed", learned)
	c.Learn("plain", &key{hash: "x"}) // less than the password
	c.Learn("relayed", &key{hash: "r"})
	c.Learn("nobody", nil)
	for user, want := range map[string]key{
		"plain": {password: "p"}, "hashed": {hash: "1"}, "dsn": {password: "d"}, "relayed": {hash: "r"}, "nobody": {},
	} {
		if got := keyOf(user); got != want {
			t.Errorf("%s logs in with %v, want %v", user, got, want)
		}
	}
	if s, ok := c.Secret("dsn"); !ok || s != "d" {
		t.Errorf("the DSN's user is checked by %q, %v", s, ok)
	}
	if _, ok := c.Secret("relayed"); ok {
		t.Error("who is not listed has a secret")
	}

	c.Refuted("hashed", learned) // listed: for the operator to correct
	c.Refuted("relayed", &key{hash: "r"})
	if keyOf("hashed") == (key{}) || keyOf("relayed") == (key{}) {
		t.Error("keys were forgotten that were listed, or others than the refused")
	}
	c.Refuted("relayed", c.Keys("relayed"))
	if keyOf("relayed") != (key{}) {
		t.Error("refused keys are kept")
	}

	c.List([]core.User[hashed]{{Name: "hashed", Secret: "hash:2"}, {Name: "dsn", Secret: "other"}}, "", "")
	for user, want := range map[string]key{"plain": {}, "hashed": {hash: "1"}, "dsn": {password: "other"}} {
		if got := keyOf(user); got != want {
			t.Errorf("listed anew, %s logs in with %v, want %v", user, got, want)
		}
	}
}
