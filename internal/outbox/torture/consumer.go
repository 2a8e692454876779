package torture

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirdb/weir/internal/lab"
)

// Sinks are the brokers that a run can start. The ledger's own broker is the strictest: it sees
// every delivery, and misbehaves on purpose. NATS drops duplicates, so it shows none.
var Sinks = []string{"ledger", "redis", "nats", "rabbitmq", "kafka"}

// broker is the broker that relays deliver to.
type broker interface {
	killableServer
	// Address returns the address for relays.
	Address() string
}

// reader is a broker that is read at the end of the run, in the order of arrival.
type reader interface {
	read(ctx context.Context, each func(payload []byte)) error
}

// realBroker is a server of the lab.
type realBroker struct {
	killableServer
	address string
	version string
	all     func(ctx context.Context, each func(payload []byte)) error
}

func (b *realBroker) Address() string { return b.address }

func (b *realBroker) read(ctx context.Context, each func(payload []byte)) error {
	if err := b.all(ctx, each); err != nil {
		return fmt.Errorf("read the broker: %w", err)
	}
	return nil
}

// startBroker starts one of Sinks.
func startBroker(ctx context.Context, name string, ledger *Ledger, trouble Trouble, latency time.Duration) (broker, error) {
	cfg := lab.BrokerConfig{}
	switch name {
	case "ledger":
		b, err := startLedgerBroker(ledger, trouble, latency)
		if err != nil {
			return nil, err
		}
		return b, nil
	case "redis":
		s, err := lab.StartRedis(ctx, cfg)
		if err != nil {
			return nil, err
		}
		return &realBroker{s, s.URL() + "?timeout=2s", "Redis " + s.Version(), readRedis(s.URL())}, nil
	case "nats":
		s, err := lab.StartNATS(ctx, cfg)
		if err != nil {
			return nil, err
		}
		return &realBroker{s, s.URL() + "?stream=T&create=true&timeout=2s&subjects=" + topic, "NATS " + s.Version(), readNATS(s.URL())}, nil
	case "rabbitmq":
		s, err := lab.StartRabbitMQ(ctx, cfg)
		if err != nil {
			return nil, err
		}
		return &realBroker{s, s.URL() + "?exchange=&declare=queue&timeout=5s", "RabbitMQ " + s.Version(), readRabbitMQ(s.URL())}, nil
	case "kafka":
		s, err := lab.StartKafka(ctx, cfg)
		if err != nil {
			return nil, err
		}
		return &realBroker{s, "kafka://" + s.Addr() + "?create=true&timeout=5s", "Kafka " + s.Version(), readKafka(s.Addr())}, nil
	}
	return nil, fmt.Errorf("sink %q: want one of %s", name, strings.Join(Sinks, ", "))
}

// readPage is the number of entries of a stream that are read at a time.
const readPage = 1000

func readRedis(url string) func(context.Context, func([]byte)) error {
	return func(ctx context.Context, each func([]byte)) error {
		o, err := redis.ParseURL(url)
		if err != nil {
			return err
		}
		c := redis.NewClient(o)
		defer c.Close()
		for from := "-"; ; {
			entries, err := c.XRangeN(ctx, topic, from, "+", readPage).Result()
			if err != nil || len(entries) == 0 {
				return err
			}
			for _, e := range entries {
				payload, ok := e.Values["payload"].(string)
				if !ok {
					return fmt.Errorf("entry %s has no payload", e.ID)
				}
				each([]byte(payload))
				from = "(" + e.ID
			}
		}
	}
}

func readNATS(url string) func(context.Context, func([]byte)) error {
	return func(ctx context.Context, each func([]byte)) error {
		nc, err := nats.Connect(url)
		if err != nil {
			return err
		}
		defer nc.Close()
		js, err := jetstream.New(nc)
		if err != nil {
			return err
		}
		stream, err := js.Stream(ctx, "T")
		if err != nil {
			return err
		}
		left := stream.CachedInfo().State.Msgs
		consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
		if err != nil {
			return err
		}
		for left > 0 {
			batch, err := consumer.Fetch(int(min(left, readPage)), jetstream.FetchMaxWait(5*time.Second))
			if err != nil {
				return err
			}
			got := uint64(0)
			for m := range batch.Messages() {
				each(m.Data())
				got++
			}
			if err := batch.Error(); err != nil {
				return err
			}
			if got == 0 {
				return fmt.Errorf("%d messages of the stream do not come", left)
			}
			left -= got
		}
		return nil
	}
}

func readRabbitMQ(url string) func(context.Context, func([]byte)) error {
	return func(_ context.Context, each func([]byte)) error {
		c, err := amqp.Dial(url)
		if err != nil {
			return err
		}
		defer c.Close()
		ch, err := c.Channel()
		if err != nil {
			return err
		}
		for {
			d, ok, err := ch.Get(topic, true)
			if err != nil || !ok {
				return err
			}
			each(d.Body)
		}
	}
}

func readKafka(addr string) func(context.Context, func([]byte)) error {
	return func(ctx context.Context, each func([]byte)) error {
		c, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		if err != nil {
			return err
		}
		defer c.Close()
		for {
			// Messages that are there come without a pause.
			wait, cancel := context.WithTimeout(ctx, 3*time.Second)
			fetches := c.PollFetches(wait)
			cancel()
			if err := fetches.Err(); errors.Is(err, context.DeadlineExceeded) {
				return ctx.Err()
			} else if err != nil {
				return err
			}
			fetches.EachRecord(func(r *kgo.Record) { each(r.Value) })
		}
	}
}
