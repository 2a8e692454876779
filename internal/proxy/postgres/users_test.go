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
		{Name: "stays", Secret: secret("a")}, {Name: "changes", Secret: secret("b")}, {Name: "leaves", Secret: secret("c")}, {Name: "keys", Secret: scram}, {Name: "becomes-scram", Secret: secret("d")},
	}})
	c.Learn("keys", &pgwire.ClientKeys{ClientKey: []byte("k")})
	c.Learn("stranger", &pgwire.ClientKeys{Password: "relayed"})

	c.List([]User{{Name: "stays", Secret: secret("a")}, {Name: "changes", Secret: secret("B")}, {Name: "keys", Secret: scram}, {Name: "becomes-scram", Secret: scram}, {Name: "new", Secret: secret("e")}}, dsn.User, dsn.Password)

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
		if _, ok := c.Secret(user); ok != want {
			t.Errorf("secret of %s held: %v, want %v", user, ok, want)
		}
	}
}
