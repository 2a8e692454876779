package redis_test

import (
	"context"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/redis"
)

// Each topic has a stream, of about the last million messages.
func ExampleNew() {
	relay := func(ctx context.Context, store outbox.Store) error {
		sink, err := redis.New(ctx, redis.Options{
			Server:       "redis.example.com:6379",
			StreamPrefix: "shop:",
			MaxLen:       1_000_000,
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
