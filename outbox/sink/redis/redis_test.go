package redis_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/redis"
	"github.com/weirdb/weir/outbox/sink/sinktest"
)

func newAdmin(t testing.TB, url string) *goredis.Client {
	t.Helper()
	o, err := goredis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	c := goredis.NewClient(o)
	t.Cleanup(func() { c.Close() })
	return c
}

func open(url string) func(testing.TB) outbox.Sink {
	return func(t testing.TB) outbox.Sink {
		t.Helper()
		s, err := redis.Open(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

// openHasty is open with a timeout that a busy machine may exceed: it tries again.
func openHasty(t *testing.T, url string) outbox.Sink {
	t.Helper()
	for {
		s, err := redis.Open(t.Context(), url)
		if err == nil {
			return s
		}
		if !outbox.IsUnavailable(err) || t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}

// connections is how many a server has accepted since it was started.
func connections(t *testing.T, admin *goredis.Client) (n int64) {
	t.Helper()
	info, err := admin.Info(t.Context(), "stats").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(info, "total_connections_received:")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatalf("%v in %q", err, info)
	}
	return n
}

// read returns all entries of a stream.
func read(admin *goredis.Client, prefix string) func(context.Context, testing.TB, string, int) []sinktest.Received {
	return func(ctx context.Context, t testing.TB, topic string, n int) []sinktest.Received {
		t.Helper()
		for {
			entries, err := admin.XRange(ctx, prefix+topic, "-", "+").Result()
			if err != nil {
				t.Fatal(err)
			}
			if len(entries) < n && ctx.Err() == nil {
				continue
			}
			var got []sinktest.Received
			for _, e := range entries {
				r := sinktest.Received{Headers: map[string]string{}}
				for field, value := range e.Values {
					text := value.(string)
					switch name, isHeader := strings.CutPrefix(field, redis.FieldHeader); {
					case isHeader:
						r.Headers[name] = text
					case field == "id":
						r.Identity = text
					case field == "key":
						r.Key = text
					case field == "payload":
						r.Payload = []byte(text)
					default:
						t.Errorf("unknown field %q", field)
					}
				}
				r.ContentType = r.Headers["content-type"]
				got = append(got, r)
			}
			return got
		}
	}
}

func TestConformance(t *testing.T) {
	server := labtest.Redis(t, lab.BrokerConfig{
		Durability: lab.Fast, Password: "geheim", Settings: map[string]string{"proto-max-bulk-len": "1048576"},
	})
	admin := newAdmin(t, server.URL())
	var topics atomic.Int64
	sinktest.Run(t, sinktest.Subject{
		Open:      open(server.URL() + "?stream-prefix=shop:&timeout=30s"),
		OpenHasty: open(server.URL() + "?stream-prefix=shop:&timeout=3s"),
		Topic:     func(testing.TB) string { return fmt.Sprintf("t%d", topics.Add(1)) },
		Read:      read(admin, "shop:"),
		TooLarge:  1_048_577,
	}.Suffer(server))
}

func TestRefusals(t *testing.T) {
	server := labtest.Redis(t, lab.BrokerConfig{Durability: lab.Fast})
	admin := newAdmin(t, server.URL())
	s := open(server.URL())(t)
	defer s.Close()
	if err := admin.Set(t.Context(), "taken", "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	// A stream's name that is something else, then the rest of the key.
	msgs := []outbox.Message{
		{Topic: "taken", Key: "a"}, {Topic: "free", Key: "a"}, {Topic: "free", Key: "b"}, {Topic: "taken"}, {Topic: "free"},
	}
	for i := range msgs {
		msgs[i].ID = outbox.NewID()
	}
	errs := s.Publish(t.Context(), msgs)
	if len(errs) != 5 || !outbox.IsRejected(errs[0]) || errs[1] != outbox.ErrHeldBack || errs[2] != nil || !outbox.IsRejected(errs[3]) || errs[4] != nil {
		t.Errorf("publish to a name that is no stream: %v", errs)
	}
	// Memory full.
	if err := admin.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if errs := s.Publish(t.Context(), msgs[2:3]); len(errs) != 1 || !outbox.IsUnavailable(errs[0]) {
		t.Errorf("publish to a full server: %v, want it unavailable", errs)
	}
	if err := admin.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	// The script is gone.
	if err := admin.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if errs := s.Publish(t.Context(), msgs[2:3]); errs != nil {
		t.Errorf("publish after the scripts were flushed: %v", errs)
	}
	m := outbox.Message{ID: outbox.NewID(), Topic: "free", Headers: map[string]string{}}
	for n := range 1000 {
		m.Headers[fmt.Sprint(n)] = "x"
	}
	if errs := s.Publish(t.Context(), []outbox.Message{m}); errs != nil {
		t.Errorf("publish 1000 headers: %v", errs)
	}
	m.Headers["more"] = "x"
	if errs := s.Publish(t.Context(), []outbox.Message{m}); len(errs) != 1 || !outbox.IsRejected(errs[0]) {
		t.Errorf("publish 1001 headers: %v, want it rejected", errs)
	}
}

func TestMaxLenAndReplicas(t *testing.T) {
	server := labtest.Redis(t, lab.BrokerConfig{Durability: lab.Fast})
	admin := newAdmin(t, server.URL())
	s := open(server.URL() + "?maxlen=100")(t)
	defer s.Close()
	msgs := make([]outbox.Message, 1500)
	for i := range msgs {
		msgs[i] = outbox.Message{ID: outbox.NewID(), Topic: "t", Key: "a"}
	}
	if errs := s.Publish(t.Context(), msgs); errs != nil {
		t.Fatal(errs[0])
	}
	if n := admin.XLen(t.Context(), "t").Val(); n < 100 || n > 300 {
		t.Errorf("%d entries of 1500 are left, want about 100", n)
	}
	alone := openHasty(t, server.URL()+"?wait=1&timeout=100ms")
	defer alone.Close()
	if errs := alone.Publish(t.Context(), msgs[:2]); len(errs) != 2 || !outbox.IsUnavailable(errs[0]) || !outbox.IsUnavailable(errs[1]) {
		t.Errorf("publish with wait=1 to a server without replicas: %v, want it unavailable", errs)
	}

	second := labtest.Redis(t, lab.BrokerConfig{Durability: lab.Fast})
	replica := newAdmin(t, second.URL())
	host, port, _ := strings.Cut(server.Addr(), ":")
	if err := replica.ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	patient := open(server.URL() + "?wait=1&timeout=30s")(t)
	defer patient.Close()
	if errs := patient.Publish(t.Context(), msgs[:2]); errs != nil {
		t.Errorf("publish with wait=1 and a replica: %v", errs)
	}
	// A replica that goes costs one more copy on a connection at most, however
	// often the messages are sent again.
	impatient := openHasty(t, server.URL()+"?wait=1&timeout=100ms&connections=1")
	defer impatient.Close()
	before := msgs[:1]
	before[0].Topic = "copies"
	for impatient.Publish(t.Context(), before) != nil { // until the replica keeps up
		if t.Context().Err() != nil {
			t.Fatal(t.Context().Err())
		}
	}
	if err := replica.ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	had, used := admin.XLen(t.Context(), "copies").Val(), connections(t, admin)
	for range 10 {
		if errs := impatient.Publish(t.Context(), before); len(errs) != 1 || !outbox.IsUnavailable(errs[0]) {
			t.Errorf("publish without the replica: %v, want it unavailable", errs)
		}
	}
	// One connection, and those that took its place when an answer was late.
	most := 1 + connections(t, admin) - used
	if n := admin.XLen(t.Context(), "copies").Val() - had; n > most || most > 10 {
		t.Errorf("10 calls without the replica have added %d entries, want at most %d", n, most)
	}
	// Replication that is being set up does not let a server end when it is asked to.
	second.Kill()
	server.Kill()
}

func TestLogin(t *testing.T) {
	server := labtest.Redis(t, lab.BrokerConfig{Durability: lab.Fast, Password: "geheim"})
	wrong := strings.Replace(server.URL(), "geheim", "s3cr3t", 1)
	_, err := redis.Open(t.Context(), wrong)
	if !outbox.IsUnavailable(err) || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("open with a wrong password: %v, want it unavailable, without the password", err)
	}
	admin := newAdmin(t, server.URL())
	err = admin.Do(t.Context(), "ACL", "SETUSER", "shop", "on", ">pass", "~shop:*", "+@all").Err()
	if err != nil {
		t.Fatal(err)
	}
	s := open(strings.Replace(server.URL(), ":geheim@", "shop:pass@", 1))(t)
	defer s.Close()
	errs := s.Publish(t.Context(), []outbox.Message{{ID: outbox.NewID(), Topic: "shop:orders"}})
	if errs != nil {
		t.Errorf("publish to a stream of the user's own: %v", errs)
	}
	errs = s.Publish(t.Context(), []outbox.Message{
		{ID: outbox.NewID(), Topic: "shop:orders", Key: "a"},
		{ID: outbox.NewID(), Topic: "other", Key: "a"},
		{ID: outbox.NewID(), Topic: "shop:orders", Key: "a"},
		{ID: outbox.NewID(), Topic: "shop:orders"},
	})
	if len(errs) != 4 || errs[0] != nil || !outbox.IsDoubtful(errs[1]) || errs[2] != outbox.ErrHeldBack || errs[3] != nil {
		t.Errorf("publish to a stream of others, too: %v, want that one doubtful", errs)
	}
	if _, err := redis.Open(t.Context(), "redis://127.0.0.1:1?timeout=1s"); !outbox.IsUnavailable(err) {
		t.Errorf("open without a server: %v, want it unavailable", err)
	}
}

func TestParseURL(t *testing.T) {
	o, err := redis.ParseURL("rediss://u:p@h/3?stream-prefix=x:&maxlen=10&wait=2&server-name=n")
	if err != nil {
		t.Fatal(err)
	}
	if o.Server != "h:6379" || !o.Secure || o.DB != 3 || o.StreamPrefix != "x:" || o.MaxLen != 10 || o.Replicas != 2 || o.TLS.ServerName != "n" {
		t.Errorf("options %+v", o)
	}
	if o.String() != "rediss://h:6379/3" {
		t.Errorf("printed %s", o)
	}
	for url, want := range map[string]string{
		"redis://h/x": "database", "redis://h,i": "one host", "redis://h?max-len=1": `unknown parameter "max-len"`,
		"redis://h?maxlen=-1": "maxlen", "redis://h?ca-file=x": "rediss", "redis://u@h": "without a password", "nats://h": "redis://",
	} {
		if _, err := redis.ParseURL(url); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", url, err, want)
		}
	}
}

func BenchmarkPublish(b *testing.B) {
	server := labtest.Redis(b, lab.BrokerConfig{})
	var topics atomic.Int64
	sinktest.Bench(b, sinktest.Subject{
		Open: open(server.URL() + "?maxlen=10000"), Topic: func(testing.TB) string { return fmt.Sprint("t", topics.Add(1)) },
	})
}

// The example runs here, where it is skipped without a server.
func TestExampleOpen(t *testing.T) {
	server := labtest.Redis(t, lab.BrokerConfig{Durability: lab.Fast})
	address = server.URL() + "?stream-prefix=shop:&maxlen=1000000"
	ExampleOpen()
	if n, err := newAdmin(t, server.URL()).XLen(t.Context(), "shop:orders").Result(); n != 1 || err != nil {
		t.Errorf("the stream has %d entries, want 1 (%v)", n, err)
	}
}
