package libraries_test

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/xdg-go/scram"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// password and secret are what a client knows and a server stores.
const password = "pencil"

func secret(tb testing.TB) (string, pgwire.Secret, scram.StoredCredentials) {
	tb.Helper()
	text, err := pgwire.NewSCRAMSecret(password)
	if err != nil {
		tb.Fatal(err)
	}
	ours, err := pgwire.ParseSecret(text)
	if err != nil {
		tb.Fatal(err)
	}
	// SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey
	parts := strings.FieldsFunc(text, func(r rune) bool { return r == '$' || r == ':' })
	decode := func(s string) []byte {
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			tb.Fatal(err)
		}
		return b
	}
	return text, ours, scram.StoredCredentials{
		KeyFactors: scram.KeyFactors{Salt: string(decode(parts[2])), Iters: 4096},
		StoredKey:  decode(parts[3]), ServerKey: decode(parts[4]),
	}
}

// weirServer is a login of one client at weir's side of the exchange.
func weirServer(tb testing.TB, s pgwire.Secret, client *scram.ClientConversation) {
	tb.Helper()
	x := pgwire.NewExchange("user", pgwire.AuthSCRAM, s, nil)
	_, err := x.Begin()
	first, err2 := client.Step("")
	must(tb, err, err2)
	// Each message begins with its type, its length and the kind of authentication.
	const header = 1 + 4 + 4
	answer, err := x.Answer(pgwire.AppendSASLInitial(nil, "SCRAM-SHA-256", []byte(first))[pgwire.HeaderLen:])
	must(tb, err)
	final, err := client.Step(string(answer[header:]))
	must(tb, err)
	_, err = x.Answer([]byte(final))
	must(tb, err)
	keys, ok := x.Proved()
	end := bytes.Index(ok, []byte("v="))
	signature, _, _ := bytes.Cut(ok[end:], []byte("R\x00")) // AuthenticationOk follows
	_, err = client.Step(string(signature))
	must(tb, err)
	if keys == nil || !client.Valid() {
		tb.Fatal("not logged in")
	}
}

// libraryServer is the same at the library's side.
func libraryServer(tb testing.TB, server *scram.Server, client *scram.ClientConversation) {
	tb.Helper()
	conv := server.NewConversation()
	first, err := client.Step("")
	must(tb, err)
	answer, err := conv.Step(first)
	must(tb, err)
	final, err := client.Step(answer)
	must(tb, err)
	last, err := conv.Step(final)
	must(tb, err)
	_, err = client.Step(last)
	must(tb, err)
	if !conv.Valid() || !client.Valid() {
		tb.Fatal("not logged in")
	}
}

func must(tb testing.TB, errs ...error) {
	tb.Helper()
	for _, err := range errs {
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// BenchmarkScram is the server's side of a login, with a client of the library, whose keys are
// derived once.
func BenchmarkScram(b *testing.B) {
	_, ours, theirs := secret(b)
	client, err := scram.SHA256.NewClient("user", password, "")
	must(b, err)
	server, err := scram.SHA256.NewServer(func(string) (scram.StoredCredentials, error) { return theirs, nil })
	must(b, err)
	b.Run("weir", func(b *testing.B) {
		defer cost(b)()
		for b.Loop() {
			weirServer(b, ours, client.NewConversation())
		}
	})
	b.Run("xdg-go", func(b *testing.B) {
		defer cost(b)()
		for b.Loop() {
			libraryServer(b, server, client.NewConversation())
		}
	})
}
