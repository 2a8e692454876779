package kafka

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/weirdb/weir/outbox/sink"
)

// Options say where the brokers are and how messages are produced.
type Options struct {
	// Brokers are "host:port", some of the cluster. Required.
	Brokers []string

	// SASL is how User and Password log in: "plain", "scram-sha-256" or
	// "scram-sha-512". Default: no login.
	SASL           string
	User, Password string

	// TLS is used when Secure is set.
	Secure bool
	TLS    sink.TLS

	// TopicPrefix is prepended to a message's topic. Default: none.
	TopicPrefix string

	// Acks is "all": a message is confirmed when all in-sync replicas have it, and
	// the producer is idempotent. Or "leader": when the partition's leader has it;
	// it is lost if the leader is. Default: "all".
	Acks string

	// Create creates missing topics with the brokers' defaults, if they allow it.
	// Default: a message to a missing topic is a failed attempt.
	Create bool

	// Compression is "none", "gzip", "snappy", "lz4" or "zstd". Default: "snappy".
	Compression string

	// MaxBytes is the largest batch, and message, of topics whose limit cannot be
	// read. Default: 1000012.
	MaxBytes int32

	// Timeout is how long to wait for a confirmation. Default: 10 s.
	Timeout time.Duration
}

// DefaultPort is the port of a broker without one.
const DefaultPort = 9092

// ParseURL reads kafka://user:password@h1:9092,h2/?name=value&… . The parameters
// are topic-prefix, acks, create, compression, max-bytes, sasl, password-file,
// tls, ca-file, cert-file, key-file, server-name and timeout.
func ParseURL(raw string) (Options, error) {
	a, err := sink.ParseAddress(raw, "kafka")
	if err != nil {
		return Options{}, fmt.Errorf("kafka: %w", err)
	}
	p := a.Params
	o := Options{
		Brokers: a.HostPorts(DefaultPort), TopicPrefix: p.Text("topic-prefix", ""),
		Acks: p.Choice("acks", "all", "leader"), Create: p.Bool("create"),
		Compression: p.Choice("compression", "snappy", "none", "gzip", "lz4", "zstd"),
		MaxBytes:    int32(p.Int("max-bytes", 0, 512, 1<<30)),
		SASL:        p.Choice("sasl", "", "plain", "scram-sha-256", "scram-sha-512"),
		Secure:      p.Bool("tls"), TLS: p.TLS(), Timeout: p.Duration("timeout", 0),
	}
	if o.User, o.Password, _, err = a.Login(); err != nil {
		return Options{}, fmt.Errorf("kafka: %w", err)
	}
	if a.Path != "" {
		return Options{}, errors.New("kafka: address: want no path")
	}
	if err := p.Err(); err != nil {
		return Options{}, fmt.Errorf("kafka: %w", err)
	}
	_, err = o.withDefaults()
	return o, err
}

func (o Options) withDefaults() (Options, error) {
	o.Acks = cmp.Or(o.Acks, "all")
	o.Compression = cmp.Or(o.Compression, "snappy")
	o.MaxBytes = cmp.Or(o.MaxBytes, 1_000_012)
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	switch {
	case len(o.Brokers) == 0:
		return o, errors.New("kafka: no broker is given")
	case o.SASL == "" && o.User+o.Password != "":
		return o, errors.New("kafka: a login without sasl=plain, scram-sha-256 or scram-sha-512")
	case o.SASL != "" && (o.User == "" || o.Password == ""):
		return o, errors.New("kafka: sasl without a user and a password")
	case !o.Secure && !o.TLS.IsZero():
		return o, errors.New("kafka: certificates without tls=true")
	case o.Timeout < time.Second:
		return o, errors.New("kafka: a timeout under 1s: brokers need longer for a change of leaders")
	}
	return o, nil
}

// String returns the address without a login.
func (o Options) String() string { return "kafka://" + strings.Join(o.Brokers, ",") }

// linger bounds how long the producer gathers a batch. It waits that long only for a topic's
// first messages: each call flushes after its last message.
const linger = 5 * time.Millisecond

// partitioner chooses partitions by key as Kafka's own clients do.
func partitioner() kgo.Partitioner { return kgo.StickyKeyPartitioner(nil) }

// client returns the options of the client library. limit returns the largest batch of a topic;
// t opens encrypted connections.
func (o Options) client(limit func(topic string) int32, t *tlsDialer) ([]kgo.Opt, error) {
	opts := []kgo.Opt{
		kgo.SeedBrokers(o.Brokers...), kgo.ClientID("weir-outbox"),
		kgo.ProducerLinger(linger), kgo.ProducerBatchMaxBytesFn(limit),
		kgo.MaxBufferedRecords(1 << 20), // the relay bounds what is in flight
		kgo.RecordPartitioner(partitioner()),
		kgo.ProduceRequestTimeout(o.Timeout), kgo.RequestTimeoutOverhead(o.Timeout), kgo.RecordDeliveryTimeout(o.Timeout),
		kgo.DialTimeout(o.Timeout), kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.RetryBackoffFn(func(tries int) time.Duration { return min(time.Second, 50*time.Millisecond<<min(tries, 6)) }),
	}
	if o.Acks == "leader" {
		opts = append(opts, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(1))
	} else {
		opts = append(opts, kgo.RequiredAcks(kgo.AllISRAcks()), kgo.AllowIdempotentProduceCancellation())
	}
	if o.Create {
		opts = append(opts, kgo.AllowAutoTopicCreation())
	}
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	codec, ok := codecs[o.Compression]
	if !ok {
		return nil, fmt.Errorf("kafka: unknown compression %q", o.Compression)
	}
	opts = append(opts, kgo.ProducerBatchCompression(codec))
	switch login := (scram.Auth{User: o.User, Pass: o.Password}); o.SASL {
	case "":
	case "plain":
		opts = append(opts, kgo.SASL(plain.Auth{User: o.User, Pass: o.Password}.AsMechanism()))
	case "scram-sha-256":
		opts = append(opts, kgo.SASL(login.AsSha256Mechanism()))
	case "scram-sha-512":
		opts = append(opts, kgo.SASL(login.AsSha512Mechanism()))
	default:
		return nil, fmt.Errorf("kafka: unknown sasl %q", o.SASL)
	}
	if o.Secure {
		var err error
		if t.cfg, err = o.TLS.Config(); err != nil {
			return nil, fmt.Errorf("kafka: %w", err)
		}
		t.timeout = o.Timeout / 2
		opts = append(opts, kgo.Dialer(t.dial))
	}
	return opts, nil
}

// tlsDialer opens encrypted connections and keeps the error of the last one: the library retries
// and then reports only its own timeouts.
type tlsDialer struct {
	cfg     *tls.Config
	timeout time.Duration

	mu   sync.Mutex
	last error
}

func (h *tlsDialer) dial(ctx context.Context, _, address string) (net.Conn, error) {
	conn, err := sink.DialTLS(ctx, h.timeout, h.cfg, address)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil || ctx.Err() == nil {
		h.last = err
	}
	return conn, err
}

// explain adds the last handshake error to an error that does not contain it.
func (h *tlsDialer) explain(err error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last == nil || errors.Is(err, h.last) {
		return err
	}
	return fmt.Errorf("%w (%w)", err, h.last)
}
