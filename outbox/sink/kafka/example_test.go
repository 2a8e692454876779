package kafka_test

import (
	"context"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/kafka"
)

// Topics have a prefix, and a message is confirmed by all replicas in sync.
func ExampleNew() {
	relay := func(ctx context.Context, store outbox.Store) error {
		sink, err := kafka.New(ctx, kafka.Options{
			Brokers:     []string{"kafka1.example.com:9092", "kafka2.example.com:9092"},
			TopicPrefix: "shop.",
			Acks:        "all",
		})
		if err != nil {
			return err
		}
		defer sink.Close()
		relay, err := outbox.NewRelay(store, sink, outbox.Config{})
		if err != nil {
			return err
		}
		return relay.Run(ctx)
	}
	_ = relay
}
