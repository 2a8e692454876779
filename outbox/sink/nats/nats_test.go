package nats_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/nats"
	"github.com/weirdb/weir/outbox/sink/sinktest"
)

// admin is a connection of the test's own.
type admin struct {
	jetstream.JetStream
	streams atomic.Int64
}

func newAdmin(t testing.TB, url string) *admin {
	t.Helper()
	conn, err := natsgo.Connect(url, natsgo.MaxReconnects(-1), natsgo.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return &admin{JetStream: js}
}

// topic makes a stream of one subject and returns that.
func (a *admin) topic(t testing.TB, change func(*jetstream.StreamConfig)) string {
	t.Helper()
	n := a.streams.Add(1)
	cfg := jetstream.StreamConfig{Name: fmt.Sprintf("S%d", n), Subjects: []string{fmt.Sprintf("shop.t%d", n)}}
	if change != nil {
		change(&cfg)
	}
	if _, err := a.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	return cfg.Subjects[0]
}

// read returns all that a subject's stream holds.
func (a *admin) read(ctx context.Context, t testing.TB, subject string, n int) []sinktest.Received {
	t.Helper()
	var got []sinktest.Received
	for {
		cons, err := a.OrderedConsumer(ctx, strings.Replace(subject, "shop.t", "S", 1), jetstream.OrderedConsumerConfig{})
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		for {
			batch, err := cons.FetchNoWait(500)
			if err != nil {
				t.Fatal(err)
			}
			before := len(got)
			for m := range batch.Messages() {
				r := sinktest.Received{Payload: m.Data(), Headers: map[string]string{}}
				for name := range m.Headers() {
					r.Headers[name] = m.Headers()[name][0]
				}
				r.Identity, r.Key, r.ContentType = r.Headers["Nats-Msg-Id"], r.Headers["weir-key"], r.Headers["content-type"]
				got = append(got, r)
			}
			if batch.Error() != nil {
				t.Fatal(batch.Error())
			}
			if len(got) == before {
				break
			}
		}
		if len(got) >= n || ctx.Err() != nil {
			return got
		}
	}
}

func open(url string) func(testing.TB) outbox.Sink {
	return func(t testing.TB) outbox.Sink {
		t.Helper()
		s, err := nats.Open(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

func TestConformance(t *testing.T) {
	server := labtest.NATS(t, lab.BrokerConfig{Durability: lab.Fast, Settings: map[string]string{"max_payload": "1200000"}})
	a := newAdmin(t, server.URL())
	sinktest.Run(t, sinktest.Subject{
		Open:      open(server.URL() + "?timeout=30s"),
		OpenHasty: open(server.URL() + "?timeout=3s"),
		Topic:     func(t testing.TB) string { return a.topic(t, nil) },
		Read:      a.read,
		TooLarge:  1_200_001,
		Missing:   func(testing.TB) string { return "nobody.has.this" },
		Dedups:    true,
	}.Suffer(server))
}

func TestStreamIsChecked(t *testing.T) {
	server := labtest.NATS(t, lab.BrokerConfig{Durability: lab.Fast})
	a := newAdmin(t, server.URL())
	if _, err := nats.Open(t.Context(), server.URL()+"?stream=NONE"); err == nil || !strings.Contains(err.Error(), "create=true") {
		t.Errorf("open with a stream that does not exist: %v, want advice", err)
	}
	s := open(server.URL() + "?stream=MADE&create=true&subject=made.{topic}&dedup-window=30s")(t)
	defer s.Close()
	if errs := s.Publish(t.Context(), []outbox.Message{{ID: outbox.NewID(), Topic: "x"}}); errs != nil {
		t.Fatal(errs)
	}
	stream, err := a.Stream(t.Context(), "MADE")
	if err != nil {
		t.Fatal(err)
	}
	if cfg := stream.CachedInfo().Config; cfg.Duplicates != 30*time.Second || cfg.Subjects[0] != "made.>" {
		t.Errorf("made a stream with window %v, subjects %v", cfg.Duplicates, cfg.Subjects)
	}

	// A subject of another stream than the one that was named.
	other := a.topic(t, nil)
	o := open(server.URL() + "?stream=MADE")(t)
	defer o.Close()
	errs := o.Publish(t.Context(), []outbox.Message{{ID: outbox.NewID(), Topic: other}})
	if len(errs) != 1 || !outbox.IsRejected(errs[0]) {
		t.Errorf("publish to a subject of another stream: %v, want it rejected", errs)
	}
}

func TestFullStreamIsBusy(t *testing.T) {
	server := labtest.NATS(t, lab.BrokerConfig{Durability: lab.Fast})
	a := newAdmin(t, server.URL())
	topic := a.topic(t, func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 1, jetstream.DiscardNew })
	s := open(server.URL())(t)
	defer s.Close()
	m := outbox.Message{Topic: topic, Key: "a"}
	for n := range 2 {
		m.ID = outbox.NewID()
		errs := s.Publish(t.Context(), []outbox.Message{m})
		if n == 0 && errs != nil {
			t.Fatal(errs)
		}
		if n == 1 && (len(errs) != 1 || !outbox.IsBusy(errs[0])) {
			t.Errorf("publish to a full stream: %v, want it busy", errs)
		}
	}
	small := a.topic(t, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 200 })
	m = outbox.Message{ID: outbox.NewID(), Topic: small, Payload: make([]byte, 300)}
	if errs := s.Publish(t.Context(), []outbox.Message{m}); len(errs) != 1 || !outbox.IsRejected(errs[0]) {
		t.Errorf("publish more than the stream's message size: %v, want it rejected", errs)
	}
}

func TestMalformedIsRejected(t *testing.T) {
	server := labtest.NATS(t, lab.BrokerConfig{Durability: lab.Fast})
	a := newAdmin(t, server.URL())
	topic := a.topic(t, nil)
	s := open(server.URL())(t)
	defer s.Close()
	for _, m := range []outbox.Message{
		{Topic: "shop.*"},
		{Topic: "a b"},
		{Topic: "a..b"},
		{Topic: "$JS.API.STREAM.DELETE.S1"},
		{Topic: ">"},
		{Topic: topic, Key: "a\nb"},
		{Topic: topic, Headers: map[string]string{"a b": "c"}},
		{Topic: topic, Headers: map[string]string{"a": "b\r\nNats-Msg-Id: x"}},
	} {
		m.ID = outbox.NewID()
		if errs := s.Publish(t.Context(), []outbox.Message{m}); len(errs) != 1 || !outbox.IsRejected(errs[0]) {
			t.Errorf("publish %q, key %q, headers %q: %v, want it rejected", m.Topic, m.Key, m.Headers, errs)
		}
	}
}

func TestLoginAndPermissions(t *testing.T) {
	server := labtest.NATS(t, lab.BrokerConfig{Durability: lab.Fast, Settings: map[string]string{
		"authorization": `{ users: [ { user: "root", password: "geheim" }, ` +
			`{ user: "shop", password: "geheim", permissions: { publish: { deny: ["shop.t1"] } } } ] }`,
	}})
	login := func(user, password string) string {
		return strings.Replace(server.URL(), "nats://", fmt.Sprintf("nats://%s:%s@", user, password), 1)
	}
	_, err := nats.Open(t.Context(), login("shop", "s3cr3t"))
	if !outbox.IsUnavailable(err) || !errors.Is(err, natsgo.ErrAuthorization) || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("open with a wrong password: %v, want it unavailable, without the password", err)
	}
	a := newAdmin(t, login("root", "geheim"))
	denied, allowed := a.topic(t, nil), a.topic(t, nil)
	s := open(login("shop", "geheim") + "?timeout=30s")(t)
	defer s.Close()
	errs := s.Publish(t.Context(), []outbox.Message{{ID: outbox.NewID(), Topic: denied}, {ID: outbox.NewID(), Topic: allowed}})
	if len(errs) != 2 || !outbox.IsDoubtful(errs[0]) || errs[1] != nil {
		t.Errorf("publish to a forbidden and an allowed subject: %v, want the first doubtful", errs)
	}
	if text := fmt.Sprint(s); strings.Contains(text, "geheim") {
		t.Errorf("the sink prints its password: %s", text)
	}
}

func TestBrokerDownAtStart(t *testing.T) {
	if _, err := nats.Open(t.Context(), "nats://127.0.0.1:1?timeout=1s"); !outbox.IsUnavailable(err) {
		t.Errorf("open without a broker: %v, want it unavailable", err)
	}
}

func BenchmarkPublish(b *testing.B) {
	server := labtest.NATS(b, lab.BrokerConfig{})
	a := newAdmin(b, server.URL())
	sinktest.Bench(b, sinktest.Subject{Open: open(server.URL()), Topic: func(t testing.TB) string { return a.topic(t, nil) }})
}

// The example runs here, where it is skipped without a server.
func TestExampleOpen(t *testing.T) {
	server := labtest.NATS(t, lab.BrokerConfig{Durability: lab.Fast})
	address = server.URL() + "?stream=SHOP&subject=shop.{topic}&create=true"
	ExampleOpen()
	stream, err := newAdmin(t, server.URL()).Stream(t.Context(), "SHOP")
	if err != nil {
		t.Fatal(err)
	}
	if m, err := stream.GetLastMsgForSubject(t.Context(), "shop.orders"); err != nil || string(m.Data) != `{"number":42}` {
		t.Errorf("the stream has %+v, %v", m, err)
	}
}
