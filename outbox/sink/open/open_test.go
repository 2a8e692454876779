package open_test

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/open"
)

func TestOpen(t *testing.T) {
	for address, name := range map[string]string{"stdout:": "stdout:", "https://u:p@h/x?query=secret": "https://h/x"} {
		s, err := open.Open(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		if s.String() != name {
			t.Errorf("%s prints as %s", address, s)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	// Every scheme reaches its sink, and a sink that failed is nil.
	for _, scheme := range open.Schemes {
		if scheme == "stdout" || strings.HasPrefix(scheme, "http") {
			continue
		}
		s, err := open.Open(t.Context(), scheme+"://127.0.0.1:1?timeout=1s")
		if s != nil || !outbox.IsUnavailable(err) {
			t.Errorf("%s without a broker: %v, %v, want it unavailable", scheme, s, err)
		}
	}
	for _, address := range []string{"", "geheim", "ftp://u:geheim@h"} {
		if s, err := open.Open(t.Context(), address); s != nil || err == nil || strings.Contains(err.Error(), "geheim") || open.Check(address) == nil {
			t.Errorf("%q: %v, %v", address, s, err)
		}
	}
}

func FuzzCheck(f *testing.F) {
	for _, s := range []string{
		"nats://u:geheim@h:1,h2?stream=S&subject=a.{topic}&create=true", "kafka://h1,h2/?acks=all&tls=true",
		"amqps://u:geheim@h/v%2F?exchange=&declare=queue", "redis://:geheim@h/1?maxlen=5", "https://h/{topic}?mode=structured&query=a%3Db",
		"stdout:?format=payload", "tls://h", "http://[::1]:80/a%20b",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, address string) {
		if strings.Contains(address, "-file") || strings.Contains(address, "creds") || strings.Contains(address, "env") {
			return // reads this machine's files
		}
		err := open.Check(address)
		if err != nil && strings.Contains(address, ":geheim@") && !strings.Contains(strings.ReplaceAll(address, ":geheim@", ""), "geheim") &&
			strings.Contains(err.Error(), "geheim") {
			t.Fatalf("%q: the error shows the password: %v", address, err)
		}
	})
}
