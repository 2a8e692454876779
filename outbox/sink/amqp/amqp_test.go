package amqp_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	amqpgo "github.com/rabbitmq/amqp091-go"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/amqp"
	"github.com/weirdb/weir/outbox/sink/sinktest"
)

// limit is the broker's for a payload.
const limit = 1_200_000

// broker is one for all tests of the package: it takes seconds to start.
type broker struct {
	*lab.RabbitMQ

	mu     sync.Mutex
	topics int
	got    map[string][]sinktest.Received
}

var shared struct {
	once sync.Once
	b    *broker
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.b != nil {
		ctx, cancel := context.WithTimeout(context.Background(), labtest.Patience)
		if err := shared.b.Stop(ctx); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		cancel()
	}
	os.Exit(code)
}

func start(t testing.TB) *broker {
	t.Helper()
	labtest.RequireRabbitMQ(t)
	shared.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), labtest.Patience)
		defer cancel()
		server, err := lab.StartRabbitMQ(ctx, lab.BrokerConfig{
			Durability: lab.Fast, Settings: map[string]string{"max_message_size": fmt.Sprint(limit)},
		})
		if err != nil {
			shared.err = err
			return
		}
		shared.b = &broker{RabbitMQ: server, got: map[string][]sinktest.Received{}}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.b
}

// admin is a channel of the test's own.
func (b *broker) admin(t testing.TB) *amqpgo.Channel {
	t.Helper()
	conn, err := amqpgo.Dial(b.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// fresh is a name that nothing has.
func (b *broker) fresh() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.topics++
	return fmt.Sprintf("t%d", b.topics)
}

// topic makes an exchange with a queue behind it.
func (b *broker) topic(t testing.TB) string {
	t.Helper()
	name := b.fresh()
	ch := b.admin(t)
	if err := ch.ExchangeDeclare(name, "fanout", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare(name, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind(name, "", name, false, nil); err != nil {
		t.Fatal(err)
	}
	return name
}

// settle waits until what was declared is in the broker's files: what it has in memory for
// two seconds before, a Kill has it forget. A queue declared later than all is a mark, since
// Mnesia appends to one log and may then move what is there to a table's file.
func (b *broker) settle(t testing.TB) {
	t.Helper()
	mark := b.fresh() + "-is-kept"
	if _, err := b.admin(t).QueueDeclare(mark, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the broker writes down its queues", func() bool {
		var kept bool
		for _, name := range []string{"LATEST.LOG", "PREVIOUS.LOG", "rabbit_durable_queue.DC*"} {
			paths, err := filepath.Glob(filepath.Join(b.DataDir(), "*", name))
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range paths {
				content, err := os.ReadFile(path)
				kept = kept || err == nil && bytes.Contains(content, []byte(mark))
			}
		}
		return kept
	})
}

// read adds what is in a queue to what was taken from it before.
func (b *broker) read(ctx context.Context, t testing.TB, topic string, n int) []sinktest.Received {
	t.Helper()
	ch := b.admin(t)
	for {
		d, ok, err := ch.Get(topic, true)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			if len(b.got[topic]) >= n || ctx.Err() != nil {
				return b.got[topic]
			}
			continue
		}
		r := sinktest.Received{Identity: d.MessageId, Payload: d.Body, ContentType: d.ContentType, Headers: map[string]string{}}
		for name, value := range d.Headers {
			r.Headers[name] = value.(string)
		}
		r.Key = r.Headers["weir-key"]
		if d.Type != "" {
			r.Headers["type"] = d.Type
		}
		if d.DeliveryMode != amqpgo.Persistent {
			t.Error("a message is not persistent")
		}
		b.got[topic] = append(b.got[topic], r)
	}
}

func open(url string) func(testing.TB) outbox.Sink {
	return func(t testing.TB) outbox.Sink {
		t.Helper()
		s, err := amqp.Open(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

func TestConformance(t *testing.T) {
	b := start(t)
	subject := sinktest.Subject{
		Open:      open(b.URL() + "?timeout=30s"),
		OpenHasty: open(b.URL() + "?timeout=5s"),
		Topic:     b.topic,
		Read:      b.read,
		TooLarge:  limit + 1,
		Missing:   func(testing.TB) string { return "nobody-made-this" },
		Settle:    b.settle,
	}.Suffer(b)
	if testing.Short() { // a start takes the broker eight seconds of a processor
		b.unreachable(t, &subject)
	}
	sinktest.Run(t, subject)
}

// unreachable has a network, instead of the broker, end connections and refuse others.
func (b *broker) unreachable(t *testing.T, s *sinktest.Subject) {
	t.Helper()
	network, err := lab.StartRelay(b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := network.Close(); err != nil {
			t.Error(err)
		}
	})
	refuse := func(t testing.TB, refuse bool) {
		t.Helper()
		if err := network.Refuse(refuse); err != nil {
			t.Fatal(err)
		}
	}
	s.OpenHasty = open(strings.Replace(b.URL(), b.Addr(), network.Addr(), 1) + "?timeout=5s")
	s.Settle = nil
	s.Kill = func(t testing.TB) {
		refuse(t, true)
		network.Cut()
	}
	s.Restart = func(t testing.TB) { refuse(t, false) }
}

// TestTLS publishes through TLS with a certificate that is to be trusted, and gives nothing
// to a broker with one that is not, or without. What else may be wrong with a certificate is
// tried in package open.
func TestTLS(t *testing.T) {
	b := start(t)
	secured := httptest.NewTLSServer(nil) // for its certificate
	defer secured.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secured.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	front, err := tls.Listen("tcp", "127.0.0.1:0", secured.TLS)
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := front.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer c.Close()
				to, err := net.Dial("tcp", b.Addr())
				if err != nil {
					return
				}
				conns.Go(func() { _, _ = io.Copy(c, to); _ = c.Close() })
				_, _ = io.Copy(to, c)
				_ = to.Close()
			})
		}
	})
	defer conns.Wait()
	defer front.Close()
	topic := b.topic(t)
	plain := strings.Replace(b.URL(), b.Addr(), front.Addr().String(), 1) + "?timeout=5s"
	secure := strings.Replace(plain, "amqp:", "amqps:", 1)
	s := open(secure + "&ca-file=" + ca)(t)
	defer s.Close()
	if errs := s.Publish(t.Context(), []outbox.Message{one(topic, "a")}); errs != nil {
		t.Errorf("publish through TLS: %v", errs)
	}
	if got := b.read(t.Context(), t, topic, 1); len(got) != 1 {
		t.Errorf("%d messages arrived, want 1", len(got))
	}
	if _, err := amqp.Open(t.Context(), secure); !outbox.IsUnavailable(err) || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("open with a certificate of an unknown authority: %v", err)
	}
	if _, err := amqp.Open(t.Context(), plain); !outbox.IsUnavailable(err) {
		t.Errorf("open without TLS where TLS is expected: %v", err)
	}
}

func one(topic, key string) outbox.Message {
	return outbox.Message{ID: outbox.NewID(), Topic: topic, Key: key, Payload: []byte("x")}
}

// attempt reports an error that spends an attempt.
func attempt(err error) bool {
	return err != nil && !outbox.IsRejected(err) && !outbox.IsUnavailable(err)
}

func TestUnroutableSpendsAnAttempt(t *testing.T) {
	b := start(t)
	ch, direct := b.admin(t), b.fresh()
	if err := ch.ExchangeDeclare(direct, "direct", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare(direct, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind(direct, "eu", direct, false, nil); err != nil {
		t.Fatal(err)
	}
	s := open(b.URL())(t)
	defer s.Close()
	errs := s.Publish(t.Context(), []outbox.Message{one(direct, "eu"), one(direct, "us"), one(direct, "us"), one(direct, "eu")})
	if len(errs) != 4 || errs[0] != nil || !attempt(errs[1]) || errs[2] != outbox.ErrHeldBack || errs[3] != nil {
		t.Errorf("publish to a routing key without a queue: %v", errs)
	}
	errs = s.Publish(t.Context(), []outbox.Message{one("no-such-exchange", "eu")})
	if len(errs) != 1 || !attempt(errs[0]) || !strings.Contains(errs[0].Error(), "make the exchange") {
		t.Errorf("publish to an exchange that does not exist: %v", errs)
	}
	loose := open(b.URL() + "?mandatory=false")(t)
	defer loose.Close()
	if errs := loose.Publish(t.Context(), []outbox.Message{one(direct, "us")}); errs != nil {
		t.Errorf("publish it with mandatory=false: %v", errs)
	}
	if got := b.read(t.Context(), t, direct, 2); len(got) != 2 {
		t.Errorf("%d messages arrived, want 2", len(got))
	}
}

func TestDeclare(t *testing.T) {
	b := start(t)
	made, made2, made3 := b.fresh(), b.fresh(), b.fresh()
	s := open(b.URL() + "?exchange=&declare=queue")(t)
	defer s.Close()
	if errs := s.Publish(t.Context(), []outbox.Message{one(made, "a"), one(made2, "")}); errs != nil {
		t.Errorf("publish to queues that are made: %v", errs)
	}
	if got := b.read(t.Context(), t, made, 1); len(got) != 1 || got[0].Key != "a" {
		t.Errorf("arrived: %+v", got)
	}
	topic := b.topic(t) // a fanout exchange: declared as topic it stays as it is
	e := open(b.URL() + "?declare=topic&mandatory=false")(t)
	defer e.Close()
	if errs := e.Publish(t.Context(), []outbox.Message{one(topic, "a"), one(made3, "")}); errs != nil {
		t.Errorf("publish to exchanges that are made or are there in another form: %v", errs)
	}
	if err := b.admin(t).ExchangeDeclarePassive(made3, "topic", true, false, false, false, nil); err != nil {
		t.Error(err)
	}
}

func TestFullQueueIsBusy(t *testing.T) {
	b := start(t)
	full := b.fresh()
	_, err := b.admin(t).QueueDeclare(full, true, false, false, false, amqpgo.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	if err != nil {
		t.Fatal(err)
	}
	s := open(b.URL() + "?exchange=")(t)
	defer s.Close()
	if errs := s.Publish(t.Context(), []outbox.Message{one(full, "a")}); errs != nil {
		t.Fatal(errs)
	}
	if errs := s.Publish(t.Context(), []outbox.Message{one(full, "a")}); len(errs) != 1 || !outbox.IsBusy(errs[0]) {
		t.Errorf("publish to a full queue: %v, want it unavailable", errs)
	}
}

func TestMalformedIsRejected(t *testing.T) {
	b := start(t)
	topic := b.topic(t)
	s := open(b.URL())(t)
	defer s.Close()
	long := strings.Repeat("x", 256)
	for name, headers := range map[string]map[string]string{
		"long content type": {"content-type": long}, "long type": {"type": long}, "long name": {long: "x"}, "CC": {"CC": "no list"},
	} {
		m := one(topic, "a")
		m.Headers = headers
		errs := s.Publish(t.Context(), []outbox.Message{one(topic, "b"), m, one(topic, "")})
		if len(errs) != 3 || errs[0] != nil || !outbox.IsRejected(errs[1]) || errs[2] != nil {
			t.Errorf("publish with %s: %v, want it rejected, alone", name, errs)
		}
	}
}

// Rights to write are a matter of permissions, not of a message.
func TestForbiddenIsDoubtful(t *testing.T) {
	b := start(t)
	forbidden, allowed := b.fresh(), b.topic(t)
	if err := b.admin(t).ExchangeDeclare(forbidden, "fanout", true, false, true, false, nil); err != nil { // for other exchanges only
		t.Fatal(err)
	}
	s := open(b.URL())(t)
	defer s.Close()
	errs := s.Publish(t.Context(), []outbox.Message{one(forbidden, "a"), one(allowed, "b")})
	if len(errs) != 2 || !outbox.IsDoubtful(errs[0]) || errs[1] != nil {
		t.Errorf("publish to a forbidden and an allowed exchange: %v, want the first doubtful", errs)
	}
}

func TestLogin(t *testing.T) {
	b := start(t)
	_, err := amqp.Open(t.Context(), strings.Replace(b.URL(), "weir:weir@", "weir:s3cr3t@", 1))
	if !outbox.IsUnavailable(err) || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("open with a wrong password: %v, want it unavailable, without the password", err)
	}
	s := open(b.URL())(t)
	defer s.Close()
	if text := fmt.Sprint(s); strings.Contains(text, "weir:weir") {
		t.Errorf("the sink prints its password: %s", text)
	}
	if _, err := amqp.Open(t.Context(), "amqp://127.0.0.1:1?timeout=1s"); !outbox.IsUnavailable(err) {
		t.Errorf("open without a broker: %v, want it unavailable", err)
	}
}

// TestSeveralServers opens with a first server that is not there.
func TestSeveralServers(t *testing.T) {
	b := start(t)
	s := open(strings.Replace(b.URL(), "@", "@127.0.0.1:1,", 1))(t)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestParseURL(t *testing.T) {
	o, err := amqp.ParseURL("amqps://u:p@h1,h2:99/%2Fshop?exchange=e.{topic}&routing-key={key}.x&declare=topic&mandatory=false&timeout=1s")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Join(o.Servers, " ") != "h1:5671 h2:99" || o.VHost != "/shop" || o.Exchange != "e.{topic}" || o.RoutingKey != "{key}.x" ||
		!o.Unroutable || o.Timeout != time.Second || o.Password != "p" {
		t.Errorf("options %+v", o)
	}
	for url, want := range map[string]string{
		"amqp://h?exchnge=x": `unknown parameter "exchnge"`, "amqp://h?declare=x": "declare", "amqp://h?declare=queue": "default exchange",
		"amqp://h?exchange=&declare=topic": "default exchange", "amqp://h?exchange={x}": "placeholders", "amqp://h?ca-file=x": "amqps",
		"http://h": "amqp://",
	} {
		if _, err := amqp.ParseURL(url); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", url, err, want)
		}
	}
}

func BenchmarkPublish(b *testing.B) {
	server := start(b)
	sinktest.Bench(b, sinktest.Subject{Open: open(server.URL()), Topic: server.topic})
}

// The example runs here, where it is skipped without a server.
func TestExampleOpen(t *testing.T) {
	b := start(t)
	topic := b.topic(t) // an exchange, and the queue behind it
	address = b.URL() + "?routing-key={topic}&exchange=" + topic
	ExampleOpen()
	if got := b.read(t.Context(), t, topic, 1); len(got) != 1 || string(got[0].Payload) != `{"number":42}` {
		t.Errorf("the queue has %v", got)
	}
}
