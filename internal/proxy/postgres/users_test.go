package postgres

import (
	"testing"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

func TestListedUsersReplaceWhatIsKnown(t *testing.T) {
	secret := func(text string) pgwire.Secret {
		t.Helper()
		s, err := pgwire.ParseSecret(text)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	scramText, err := pgwire.NewSCRAMSecret("sesame")
	if err != nil {
		t.Fatal(err)
	}
	scram := secret(scramText)
	dsn := pgwire.ConnectConfig{User: "owner", Password: "own"}
	var c credentials
	c.init(&Config{Postgres: dsn, Users: []User{
		{"stays", secret("a")}, {"changes", secret("b")}, {"leaves", secret("c")}, {"keys", scram}, {"becomes-scram", secret("d")},
	}})
	c.learn("keys", &pgwire.ClientKeys{ClientKey: []byte("k")})
	c.learn("stranger", &pgwire.ClientKeys{Password: "relayed"})

	c.list([]User{{"stays", secret("a")}, {"changes", secret("B")}, {"keys", scram}, {"becomes-scram", scram}, {"new", secret("e")}}, dsn)

	for user, want := range map[string]string{
		"stays": "a", "changes": "B", "leaves": "", "becomes-scram": "", "new": "e", "owner": "own",
		"stranger": "relayed", // never listed: what its login taught still holds
	} {
		if got, _ := c.of(user); got != want {
			t.Errorf("password of %s: %q, want %q", user, got, want)
		}
	}
	if _, keys := c.of("keys"); keys == nil || string(keys.ClientKey) != "k" {
		t.Error("the keys of a SCRAM login were forgotten although its user is still listed")
	}
	for user, want := range map[string]bool{"leaves": false, "new": true, "owner": true, "stranger": false} {
		if _, ok := c.secret(user); ok != want {
			t.Errorf("secret of %s held: %v, want %v", user, ok, want)
		}
	}
}
