package nats

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/outbox/sink"
)

func TestParseURL(t *testing.T) {
	for _, c := range []struct {
		url  string
		want Options
		err  string
	}{
		{"nats://h", Options{Servers: []string{"h:4222"}}, ""},
		{
			"nats://u:p%40ss@h1,h2:5222?stream=S&subject=shop.{topic}&create=true&timeout=2s&replicas=3",
			Options{
				Servers: []string{"h1:4222", "h2:5222"}, User: "u", Password: "p@ss", Stream: "S", Subject: "shop.{topic}",
				Create: true, Replicas: 3, Timeout: 2 * time.Second,
			},
			"",
		},
		{"tls://h?ca-file=/ca", Options{Servers: []string{"h:4222"}, Secure: true, TLS: sink.TLS{CAFile: "/ca"}}, ""},
		{"nats://h?ca-file=/ca", Options{}, "certificates without tls=true"},
		{"nats://h?sream=x", Options{}, `unknown parameter "sream"`},
		{"nats://h?create=true", Options{}, "needs stream"},
		{"nats://h?create=true&stream=S", Options{}, "needs subjects"},
		{"nats://h?subject={tpic}", Options{}, "placeholders"},
		{"nats://h?timeout=-1s", Options{}, `parameter timeout="-1s"`},
		{"nats://h/S", Options{}, "no path"},
		{"nats://u:p:w@h:x", Options{}, "percent-encoded"},
		{"redis://h", Options{}, "want nats://"},
	} {
		got, err := ParseURL(c.url)
		switch {
		case c.err == "" && err != nil:
			t.Errorf("%s: %v", c.url, err)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: %v, want an error with %q", c.url, err, c.err)
		case c.err == "":
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", c.url, diff)
			}
		}
	}
}
