package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/kafka"
	"github.com/weirdb/weir/outbox/sink/sinktest"
)

// admin makes topics and reads them.
type admin struct {
	brokers []string
	client  *kgo.Client
	topics  atomic.Int64
}

func newAdmin(t testing.TB, brokers ...string) *admin {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &admin{brokers: brokers, client: client}
}

// topic makes one of three partitions, with settings "name=value".
func (a *admin) topic(t testing.TB, settings ...string) string {
	t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = fmt.Sprintf("shop.t%d", a.topics.Add(1)), 3, 1
	for _, s := range settings {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		name, value, _ := strings.Cut(s, "=")
		c.Name, c.Value = name, &value
		topic.Configs = append(topic.Configs, c)
	}
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(t.Context(), a.client)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(topic.Topic, "shop.")
}

// read reads a topic from its start.
func (a *admin) read(ctx context.Context, t testing.TB, topic string, n int) []sinktest.Received {
	t.Helper()
	consumer, err := kgo.NewClient(kgo.SeedBrokers(a.brokers...), kgo.ConsumeTopics("shop."+topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	var got []sinktest.Received
	for len(got) < n && ctx.Err() == nil {
		fetches := consumer.PollFetches(ctx)
		fetches.EachRecord(func(r *kgo.Record) {
			m := sinktest.Received{Key: string(r.Key), Payload: r.Value, Headers: map[string]string{}}
			for _, h := range r.Headers {
				m.Headers[h.Key] = string(h.Value)
			}
			m.Identity, m.ContentType = m.Headers["weir-id"], m.Headers["content-type"]
			got = append(got, m)
		})
	}
	return got
}

func open(url string) func(testing.TB) outbox.Sink {
	return func(t testing.TB) outbox.Sink {
		t.Helper()
		s, err := kafka.Open(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

func (a *admin) subject(url string) sinktest.Subject {
	return sinktest.Subject{
		Open:      open(url + "?topic-prefix=shop.&timeout=30s"),
		OpenHasty: open(url + "?topic-prefix=shop.&timeout=3s"),
		Topic:     func(t testing.TB) string { return a.topic(t, "max.message.bytes=1100000") },
		Read:      a.read,
		TooLarge:  1_100_001,
		Missing:   func(testing.TB) string { return "nobody-made-this" },
	}
}

func TestConformance(t *testing.T) {
	server := labtest.Kafka(t, lab.BrokerConfig{Durability: lab.Fast, Settings: map[string]string{"auto.create.topics.enable": "false"}})
	sinktest.Run(t, newAdmin(t, server.Addr()).subject(server.URL()).Suffer(server))
}

// fake is a Kafka within the test, for what a real one cannot be made to do.
func fake(t testing.TB, opts ...kfake.Opt) (*kfake.Cluster, *admin, string) {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, newAdmin(t, c.ListenAddrs()...), "kafka://" + strings.Join(c.ListenAddrs(), ",")
}

// TestConformanceOfFake runs where there is no Kafka, too; nothing is killed.
func TestConformanceOfFake(t *testing.T) {
	_, a, url := fake(t)
	sinktest.Run(t, a.subject(url))
}

func one(topic, key string) outbox.Message {
	return outbox.Message{ID: outbox.NewID(), Topic: topic, Key: key, Payload: []byte("x")}
}

// refuse makes the broker answer every request to produce with an error.
func refuse(c *kfake.Cluster, code *kerr.Error) {
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		p := req.(*kmsg.ProduceRequest)
		resp := p.ResponseKind().(*kmsg.ProduceResponse)
		for _, t := range p.Topics {
			rt := kmsg.NewProduceResponseTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			for _, part := range t.Partitions {
				rp := kmsg.NewProduceResponseTopicPartition()
				rp.Partition, rp.ErrorCode = part.Partition, code.Code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
}

func TestKindsOfRefusal(t *testing.T) {
	for _, c := range []struct {
		code *kerr.Error
		kind func(error) bool
		name string
	}{
		{kerr.MessageTooLarge, outbox.IsRejected, "rejected"},
		{kerr.TopicAuthorizationFailed, outbox.IsDoubtful, "doubtful"},
		{kerr.InvalidTimestamp, outbox.IsDoubtful, "doubtful"},
		{kerr.UnknownTopicOrPartition, attempt, "a plain error"},
		{kerr.InvalidRecord, outbox.IsRejected, "rejected"},
		{kerr.ClusterAuthorizationFailed, outbox.IsUnavailable, "unavailable"},
		{kerr.NotEnoughReplicas, outbox.IsUnavailable, "unavailable"},
		{kerr.UnknownServerError, func(err error) bool { return !outbox.IsRejected(err) && !outbox.IsUnavailable(err) }, "a plain error"},
	} {
		t.Run(c.code.Message, func(t *testing.T) {
			cluster, a, url := fake(t)
			topic := a.topic(t)
			timeout := "30s"
			if c.code.Retriable { // it is tried again until then
				timeout = "5s"
			}
			s := open(url + "?topic-prefix=shop.&timeout=" + timeout)(t)
			defer s.Close()
			refuse(cluster, c.code)
			errs := s.Publish(t.Context(), []outbox.Message{one(topic, "a"), one(topic, "b")})
			if len(errs) != 2 || errs[0] == nil || !c.kind(errs[0]) {
				t.Errorf("publish: %v, want it %s", errs, c.name)
			}
		})
	}
}

// attempt reports an error that spends an attempt.
func attempt(err error) bool {
	return err != nil && !outbox.IsRejected(err) && !outbox.IsUnavailable(err)
}

// A topic that is deleted and made again takes messages again.
func TestTopicMadeAgain(t *testing.T) {
	_, a, url := fake(t)
	topic := a.topic(t)
	s := open(url + "?topic-prefix=shop.")(t)
	defer s.Close()
	if errs := s.Publish(t.Context(), []outbox.Message{one(topic, "a")}); errs != nil {
		t.Fatal(errs)
	}
	req := kmsg.NewPtrDeleteTopicsRequest()
	gone := kmsg.NewDeleteTopicsRequestTopic()
	gone.Topic = kmsg.StringPtr("shop." + topic)
	req.Topics, req.TopicNames = append(req.Topics, gone), append(req.TopicNames, "shop."+topic)
	resp, err := req.RequestWith(t.Context(), a.client)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if err != nil {
		t.Fatal(err)
	}
	a.topics.Add(-1)
	if again := a.topic(t); again != topic {
		t.Fatalf("made topic %s again as %s", topic, again)
	}
	var errs []error
	testkit.Await(t, func() bool {
		errs = s.Publish(t.Context(), []outbox.Message{one(topic, "a"), one(topic, "b")})
		for _, err := range errs {
			if err != nil && !attempt(err) {
				t.Errorf("publish to a topic that was made again: %v, want it doubtful", err)
			}
		}
		return errs == nil
	}, func() string { return fmt.Sprint(errs) })
}

func TestTopics(t *testing.T) {
	_, a, url := fake(t, kfake.AllowAutoTopicCreation())
	compacted := a.topic(t, "cleanup.policy=compact")
	s := open(url + "?topic-prefix=shop.")(t)
	defer s.Close()
	errs := s.Publish(t.Context(), []outbox.Message{one(compacted, "a"), one(compacted, ""), one("bad name", "b")})
	if len(errs) != 3 || errs[0] != nil || !outbox.IsRejected(errs[1]) || !attempt(errs[2]) {
		t.Errorf("publish with a key, without one, and to a bad name, to a compacted topic: %v", errs)
	}
	// A key over two topics.
	other := a.topic(t)
	msgs := []outbox.Message{one(compacted, "k"), one(other, "k"), one("missing", "k"), one(other, "k")}
	errs = s.Publish(t.Context(), msgs)
	if len(errs) != 4 || errs[0] != nil || errs[1] != nil || !attempt(errs[2]) || errs[3] != outbox.ErrHeldBack {
		t.Errorf("publish one key to several topics: %v", errs)
	}
	maker := open(url + "?topic-prefix=shop.&create=true")(t)
	defer maker.Close()
	if errs := maker.Publish(t.Context(), []outbox.Message{one("fresh", "a")}); errs != nil {
		t.Errorf("publish with create=true to a topic that does not exist: %v", errs)
	}
}

func TestLogin(t *testing.T) {
	_, _, url := fake(t, kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-256", "shop", "geheim"))
	with := func(password, timeout string) string {
		return strings.Replace(url, "://", "://shop:"+password+"@", 1) + "?sasl=scram-sha-256&timeout=" + timeout
	}
	_, err := kafka.Open(t.Context(), with("s3cr3t", "2s"))
	if !outbox.IsUnavailable(err) || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("open with a wrong password: %v, want it unavailable, without the password", err)
	}
	s := open(with("geheim", "30s"))(t)
	defer s.Close()
	if text := fmt.Sprint(s); strings.Contains(text, "geheim") {
		t.Errorf("the sink prints its password: %s", text)
	}
	if _, err := kafka.Open(t.Context(), "kafka://127.0.0.1:1?timeout=1s"); !outbox.IsUnavailable(err) {
		t.Errorf("open without a broker: %v, want it unavailable", err)
	}
}

func TestParseURL(t *testing.T) {
	o, err := kafka.ParseURL("kafka://u:p@h1:9093,h2/?topic-prefix=x.&acks=leader&compression=zstd&sasl=plain&tls=true&ca-file=/ca&max-bytes=5000&create=true")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Join(o.Brokers, " ") != "h1:9093 h2:9092" || o.TopicPrefix != "x." || o.Acks != "leader" || o.Compression != "zstd" ||
		o.SASL != "plain" || !o.Secure || o.TLS.CAFile != "/ca" || o.MaxBytes != 5000 || !o.Create || o.String() != "kafka://h1:9093,h2:9092" {
		t.Errorf("options %+v", o)
	}
	for url, want := range map[string]string{
		"kafka://h?ack=all": `unknown parameter "ack"`, "kafka://h?acks=none": "all or leader", "kafka://u:p@h": "sasl=plain",
		"kafka://h?sasl=plain": "user", "kafka://h?ca-file=x": "tls=true", "kafka://h/t": "no path", "kafka://h?timeout=1ms": "timeout",
		"amqp://h": "kafka://",
	} {
		if _, err := kafka.ParseURL(url); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", url, err, want)
		}
	}
}

func BenchmarkPublish(b *testing.B) {
	server := labtest.Kafka(b, lab.BrokerConfig{})
	sinktest.Bench(b, newAdmin(b, server.Addr()).subject(server.URL()))
}

// A broker that refuses a batch for one message in it does not say for which:
// the others are not rejected with it.
func TestOnlyTheMessageToBlameIsRejected(t *testing.T) {
	cluster, a, url := fake(t)
	topic := a.topic(t)
	s := open(url + "?topic-prefix=shop.&timeout=30s")(t)
	defer s.Close()
	cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		p := req.(*kmsg.ProduceRequest)
		resp := p.ResponseKind().(*kmsg.ProduceResponse)
		poison := false
		for _, t := range p.Topics {
			rt := kmsg.NewProduceResponseTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			for _, part := range t.Partitions {
				rp := kmsg.NewProduceResponseTopicPartition()
				rp.Partition, rp.ErrorCode = part.Partition, kerr.InvalidRecord.Code
				rt.Partitions = append(rt.Partitions, rp)
				poison = poison || bytes.Contains(part.Records, []byte("poison"))
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, poison
	})
	msgs := []outbox.Message{one(topic, "a"), one(topic, "a"), one(topic, "a")}
	msgs[1].Payload = []byte("poison")
	errs := s.Publish(t.Context(), msgs)
	if len(errs) != 3 || errs[0] != nil || !outbox.IsRejected(errs[1]) || !errors.Is(errs[2], outbox.ErrHeldBack) {
		t.Fatalf("publish: %v, want the second rejected and the third held back", errs)
	}
	if errs := s.Publish(t.Context(), msgs[2:]); errs != nil {
		t.Errorf("publish the third again: %v", errs)
	}
}

// The part that the sink names is the partition that the message goes to.
func TestPartIsThePartition(t *testing.T) {
	_, a, url := fake(t)
	topic := a.topic(t)
	s := open(url + "?topic-prefix=shop.&timeout=30s")(t).(*kafka.Sink)
	defer s.Close()
	var msgs []outbox.Message
	for i := range 60 {
		msgs = append(msgs, one(topic, fmt.Sprint("key-", i)))
	}
	if part := s.Part(&msgs[0]); part != "" {
		t.Errorf("part %q of a topic that nothing is known of", part)
	}
	if errs := s.Publish(t.Context(), msgs); errs != nil {
		t.Fatal(errs)
	}
	if part := s.Part(&outbox.Message{Topic: topic}); part != "" {
		t.Errorf("part %q of a message without a key", part)
	}
	consumer, err := kgo.NewClient(kgo.SeedBrokers(a.brokers...), kgo.ConsumeTopics("shop."+topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	partitions := map[int32]bool{}
	for n := 0; n < len(msgs) && t.Context().Err() == nil; {
		consumer.PollFetches(t.Context()).EachRecord(func(r *kgo.Record) {
			n++
			partitions[r.Partition] = true
			m := one(topic, string(r.Key))
			if part, want := s.Part(&m), fmt.Sprintf("%s[%d]", r.Topic, r.Partition); part != want {
				t.Errorf("key %q: part %q, and it went to %s", m.Key, part, want)
			}
		})
	}
	if len(partitions) != 3 {
		t.Errorf("the keys went to %d partitions, want 3", len(partitions))
	}
}
