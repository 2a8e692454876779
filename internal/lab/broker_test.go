package lab_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// broker has the methods of each broker that the tests need.
type broker interface {
	URL() string
	Port() int
	PID() int
	DataDir() string
	Version() string
	LogTail(lines int) string
	Stop(context.Context) error
	Kill()
	Restart(context.Context) error
}

// A client stores and reads values by key, with the broker's own protocol and one connection for
// each call.
type client interface {
	put(ctx context.Context, key, value string) error
	get(ctx context.Context, key string) (string, error)
}

func TestBrokersKeepWhatTheyAcknowledged(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		start func(t *testing.T) (broker, client)
	}{
		{"nats", func(t *testing.T) (broker, client) {
			n := labtest.NATS(t, lab.BrokerConfig{})
			return n, natsClient{n}
		}},
		{"nats fast", func(t *testing.T) (broker, client) {
			n := labtest.NATS(t, lab.BrokerConfig{Durability: lab.Fast})
			return n, natsClient{n}
		}},
		{"redis", func(t *testing.T) (broker, client) {
			r := labtest.Redis(t, lab.BrokerConfig{})
			return r, redisClient{r}
		}},
		{"redis fast", func(t *testing.T) (broker, client) {
			r := labtest.Redis(t, lab.BrokerConfig{Durability: lab.Fast})
			return r, redisClient{r}
		}},
		{"rabbitmq", func(t *testing.T) (broker, client) {
			r := labtest.RabbitMQ(t, lab.BrokerConfig{Durability: lab.Fast}) // RabbitMQ flushes what it confirms even so
			refuses(t, rabbitClient{withPassword(t, r, "wrong")})            // here: each start takes 5 s of the processor
			return r, rabbitClient{r}
		}},
		{"kafka", func(t *testing.T) (broker, client) {
			k := labtest.Kafka(t, lab.BrokerConfig{})
			return k, kafkaClient{k}
		}},
		{"s3", func(t *testing.T) (broker, client) {
			s := labtest.S3(t, lab.BrokerConfig{})
			return s, s3Client{s, s.Password()}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.name == "rabbitmq" || tt.name == "kafka" {
				testkit.Long(t, "starts "+tt.name+" three times, 5 s of a processor each")
			}
			t.Parallel()
			b, c := tt.start(t)
			ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
			defer cancel()
			put := func(key string) {
				t.Helper()
				if err := c.put(ctx, key, "value of "+key); err != nil {
					t.Fatalf("put %s: %v", key, err)
				}
			}
			get := func(key string) {
				t.Helper()
				if got, err := c.get(ctx, key); got != "value of "+key || err != nil {
					t.Fatalf("get %s: %q, %v; the log ends with\n%s", key, got, err, b.LogTail(30))
				}
			}
			put("one")
			get("one")
			port, pid := b.Port(), b.PID()
			if err := b.Restart(ctx); err != nil {
				t.Fatal(err)
			}
			get("one")
			if runs(pid) || b.PID() == pid {
				t.Errorf("process %d is still the server after Restart", pid)
			}
			put("two")
			pid = b.PID()
			b.Kill()
			if runs(pid) {
				t.Errorf("process %d still runs after Kill", pid)
			}
			if err := b.Restart(ctx); err != nil {
				t.Fatal(err)
			}
			get("one")
			get("two")
			if b.Port() != port {
				t.Errorf("port %d after Restart, want %d", b.Port(), port)
			}
			pid = b.PID()
			if err := b.Stop(ctx); err != nil {
				t.Fatal(err)
			}
			if runs(pid) {
				t.Errorf("process %d still runs after Stop", pid)
			}
			if _, err := os.Stat(filepath.Dir(b.DataDir())); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("run directory after Stop: %v, want it gone", err)
			}
			if err := b.Restart(ctx); err == nil {
				t.Error("Restart after Stop succeeded")
			}
		})
	}
}

func TestBrokersAskForThePassword(t *testing.T) {
	t.Parallel()
	cfg := lab.BrokerConfig{Durability: lab.Fast, Password: "sesame1"}
	tests := []struct {
		name  string
		start func(t *testing.T) (right, wrong client)
	}{
		{"nats", func(t *testing.T) (client, client) {
			n := labtest.NATS(t, cfg)
			return natsClient{n}, natsClient{withPassword(t, n, "wrong")}
		}},
		{"redis", func(t *testing.T) (client, client) {
			r := labtest.Redis(t, cfg)
			return redisClient{r}, redisClient{withPassword(t, r, "wrong")}
		}},
		{"s3", func(t *testing.T) (client, client) {
			s := labtest.S3(t, cfg)
			return s3Client{s, s.Password()}, s3Client{s, "wrong"}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			right, wrong := tt.start(t)
			ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
			defer cancel()
			if err := right.put(ctx, "k", "v"); err != nil {
				t.Errorf("with the password: %v", err)
			}
			refuses(t, wrong)
		})
	}
}

// refuses checks that the broker refuses a client with a wrong password.
func refuses(t *testing.T, wrong client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	if err := wrong.put(ctx, "k", "v"); err == nil {
		t.Error("with another password: no error")
	}
}

// urler is a broker as its clients see it.
type urler interface{ URL() string }

type fixedURL string

func (u fixedURL) URL() string { return string(u) }

// withPassword returns the broker with another password in its URL.
func withPassword(t *testing.T, b urler, password string) urler {
	t.Helper()
	u, err := url.Parse(b.URL())
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(u.User.Username(), password)
	return fixedURL(u.String())
}

type natsClient struct{ at urler }

func (c natsClient) do(ctx context.Context, f func(context.Context, jetstream.Stream, jetstream.JetStream) error) error {
	conn, err := nats.Connect(c.at.URL())
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	stream, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "kept", Subjects: []string{"kept.>"}})
	if err != nil {
		return err
	}
	return f(ctx, stream, js)
}

func (c natsClient) put(ctx context.Context, key, value string) error {
	return c.do(ctx, func(ctx context.Context, _ jetstream.Stream, js jetstream.JetStream) error {
		_, err := js.Publish(ctx, "kept."+key, []byte(value))
		return err
	})
}

func (c natsClient) get(ctx context.Context, key string) (value string, err error) {
	err = c.do(ctx, func(ctx context.Context, s jetstream.Stream, _ jetstream.JetStream) error {
		msg, err := s.GetLastMsgForSubject(ctx, "kept."+key)
		if err == nil {
			value = string(msg.Data)
		}
		return err
	})
	return value, err
}

type redisClient struct{ at urler }

func (c redisClient) dial() (*redis.Client, error) {
	o, err := redis.ParseURL(c.at.URL())
	if err != nil {
		return nil, err
	}
	return redis.NewClient(o), nil
}

func (c redisClient) put(ctx context.Context, key, value string) error {
	r, err := c.dial()
	if err != nil {
		return err
	}
	return errors.Join(r.Set(ctx, key, value, 0).Err(), r.Close())
}

func (c redisClient) get(ctx context.Context, key string) (string, error) {
	r, err := c.dial()
	if err != nil {
		return "", err
	}
	value, err := r.Get(ctx, key).Result()
	return value, errors.Join(err, r.Close())
}

type rabbitClient struct{ at urler }

func (c rabbitClient) do(f func(*amqp.Channel) error) error {
	conn, err := amqp.Dial(c.at.URL())
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	return f(ch)
}

// put declares all queues of the tests at once, because a queue that was declared just before a
// crash may be lost: see StartRabbitMQ.
func (c rabbitClient) put(ctx context.Context, key, value string) error {
	return c.do(func(ch *amqp.Channel) error {
		for _, name := range []string{"one", "two", "k"} {
			if _, err := ch.QueueDeclare(name, true, false, false, false, nil); err != nil {
				return err
			}
		}
		if err := ch.Confirm(false); err != nil {
			return err
		}
		msg := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(value)}
		confirmed, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", key, true, false, msg)
		if err != nil {
			return err
		}
		if ok, err := confirmed.WaitContext(ctx); !ok || err != nil {
			return fmt.Errorf("confirmed %v: %w", ok, err)
		}
		return nil
	})
}

// get reads from an existing queue without acknowledging, so that the message stays.
func (c rabbitClient) get(_ context.Context, key string) (value string, err error) {
	err = c.do(func(ch *amqp.Channel) error {
		msg, ok, err := ch.Get(key, false)
		if err == nil && !ok {
			err = errors.New("queue is empty")
		}
		value = string(msg.Body)
		return err
	})
	return value, err
}

type kafkaClient struct{ at urler }

func (c kafkaClient) dial(opts ...kgo.Opt) (*kgo.Client, error) {
	seed := strings.TrimPrefix(c.at.URL(), "kafka://")
	return kgo.NewClient(append(opts, kgo.SeedBrokers(seed), kgo.AllowAutoTopicCreation())...)
}

func (c kafkaClient) put(ctx context.Context, key, value string) error {
	k, err := c.dial()
	if err != nil {
		return err
	}
	defer k.Close()
	return k.ProduceSync(ctx, &kgo.Record{Topic: key, Value: []byte(value)}).FirstErr()
}

func (c kafkaClient) get(ctx context.Context, key string) (string, error) {
	k, err := c.dial(kgo.ConsumeTopics(key), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return "", err
	}
	defer k.Close()
	got := k.PollFetches(ctx)
	records := got.Records()
	if len(records) == 0 {
		return "", fmt.Errorf("no record: %w", got.Err())
	}
	return string(records[0].Value), got.Err()
}

type s3Client struct {
	at     *lab.S3
	secret string
}

func (c s3Client) dial() (*minio.Client, error) {
	return minio.New(strings.TrimPrefix(c.at.Endpoint(), "http://"), &minio.Options{
		Creds: credentials.NewStaticV4(c.at.AccessKey(), c.secret, ""), Region: c.at.Region(),
	})
}

func (c s3Client) put(ctx context.Context, key, value string) error {
	m, err := c.dial()
	if err != nil {
		return err
	}
	_, err = m.PutObject(ctx, c.at.Bucket(), key, strings.NewReader(value), int64(len(value)), minio.PutObjectOptions{})
	return err
}

func (c s3Client) get(ctx context.Context, key string) (string, error) {
	m, err := c.dial()
	if err != nil {
		return "", err
	}
	object, err := m.GetObject(ctx, c.at.Bucket(), key, minio.GetObjectOptions{})
	if err != nil {
		return "", err
	}
	value, err := io.ReadAll(object)
	return string(value), errors.Join(err, object.Close())
}

// TestS3Multipart compares bytes, because some servers store the framing of a streamed upload as
// content.
func TestS3Multipart(t *testing.T) {
	t.Parallel()
	s := labtest.SharedS3(t)
	m, err := s3Client{s, s.Password()}.dial()
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, 11<<20)
	for i := range content {
		content[i] = byte(i >> 8 * 31)
	}
	// The size is unknown to the client, as that of a stream is.
	info, err := m.PutObject(t.Context(), s.Bucket(), "a/b/large", struct{ io.Reader }{bytes.NewReader(content)}, -1,
		minio.PutObjectOptions{PartSize: 5 << 20})
	if err != nil || info.Size != int64(len(content)) {
		t.Fatalf("stored %d bytes of %d: %v", info.Size, len(content), err)
	}
	got, err := s3Client{s, s.Password()}.get(t.Context(), "a/b/large")
	if err != nil || len(got) != len(content) || sha256.Sum256([]byte(got)) != sha256.Sum256(content) {
		t.Errorf("read %d bytes, %v; want the %d that were stored", len(got), err, len(content))
	}
}

func TestSharedBrokersAreOne(t *testing.T) {
	t.Parallel()
	if a, b := labtest.SharedNATS(t), labtest.SharedNATS(t); a != b {
		t.Error("two calls, two NATS servers")
	}
	if a, b := labtest.SharedRedis(t), labtest.SharedRedis(t); a != b {
		t.Error("two calls, two Redis servers")
	}
}

func TestBrokerSettingsWin(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	n := labtest.NATS(t, lab.BrokerConfig{Settings: map[string]string{"max_payload": "2048"}})
	conn, err := nats.Connect(n.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := conn.MaxPayload(); got != 2048 {
		t.Errorf("NATS: max_payload %d, want 2048", got)
	}
	for durability, want := range map[lab.Durability]string{lab.Prod: "always", lab.Fast: "no"} {
		r := labtest.Redis(t, lab.BrokerConfig{Durability: durability, Settings: map[string]string{"maxmemory": "3145728"}})
		c, err := redisClient{r}.dial()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		got, err := c.ConfigGet(ctx, "*").Result()
		if err != nil || got["appendfsync"] != want || got["maxmemory"] != "3145728" {
			t.Errorf("Redis %v: appendfsync %q, maxmemory %q, %v", durability, got["appendfsync"], got["maxmemory"], err)
		}
	}
}

func TestBrokerConfigRefused(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	tests := []struct {
		cfg  lab.BrokerConfig
		want string
	}{
		{lab.BrokerConfig{Port: -1}, "port -1"},
		{lab.BrokerConfig{Password: `a"b`}, "password: must be letters and digits"},
		{lab.BrokerConfig{Settings: map[string]string{"a b": "c"}}, `setting "a b"`},
		{lab.BrokerConfig{Settings: map[string]string{"a": "b\nc"}}, `setting "a"`},
		{lab.BrokerConfig{Program: "/nonexistent"}, "/nonexistent"},
	}
	start := map[string]func(lab.BrokerConfig) error{
		"nats":     func(c lab.BrokerConfig) error { return onlyError(lab.StartNATS(ctx, c)) },
		"redis":    func(c lab.BrokerConfig) error { return onlyError(lab.StartRedis(ctx, c)) },
		"rabbitmq": func(c lab.BrokerConfig) error { return onlyError(lab.StartRabbitMQ(ctx, c)) },
		"kafka":    func(c lab.BrokerConfig) error { return onlyError(lab.StartKafka(ctx, c)) },
		"s3":       func(c lab.BrokerConfig) error { return onlyError(lab.StartS3(ctx, c)) },
	}
	for name, f := range start {
		for _, tt := range tests {
			if err := f(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) || lab.NotInstalled(err) {
				t.Errorf("%s, %+v: error %v, want one with %q", name, tt.cfg, err, tt.want)
			}
		}
	}
	if err := start["kafka"](lab.BrokerConfig{Password: "a"}); err == nil {
		t.Error("Kafka took a password")
	}
	if err := start["s3"](lab.BrokerConfig{Settings: map[string]string{"a": "b"}}); err == nil {
		t.Error("the S3 server took a setting")
	}
}

// onlyError returns err, and stops a broker that should not have started.
func onlyError[B broker](b B, err error) error {
	if err == nil {
		err = b.Stop(context.Background())
	}
	return err
}

// TestBrokerOnATakenPort checks that another program that answers on the port is not mistaken
// for the server.
func TestBrokerOnATakenPort(t *testing.T) {
	t.Parallel()
	first := labtest.SharedRedis(t)
	b, err := lab.StartRedis(t.Context(), lab.BrokerConfig{Port: first.Port()})
	if err == nil {
		_ = b.Stop(t.Context())
		t.Fatal("two servers on one port")
	}
	if !strings.Contains(err.Error(), "ddress already in use") {
		t.Errorf("error %v, want it to name the port's being in use", err)
	}
	s3 := labtest.SharedS3(t)
	if s, err := lab.StartS3(t.Context(), lab.BrokerConfig{Port: s3.Port()}); err == nil {
		_ = s.Stop(t.Context())
		t.Error("two S3 servers on one port")
	}
}

// TestBrokerFromAClosedHome starts servers from root's checkout, which the users that they run
// as cannot reach.
func TestBrokerFromAClosedHome(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, whose servers run as somebody else")
	}
	labtest.SharedNATS(t) // skips where there is none
	path, _, err := lab.FindNATS(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(shortDir(t), "home")
	program := filepath.Join(home, "nats-server")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	labtest.WriteProgram(t, program, content)
	n := labtest.NATS(t, lab.BrokerConfig{Program: program})
	info, err := os.Stat(fmt.Sprintf("/proc/%d", n.PID()))
	if err != nil {
		t.Fatal(err)
	}
	if info.Sys().(*syscall.Stat_t).Uid == 0 {
		t.Error("the server runs as root")
	}
}
