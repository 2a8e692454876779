package amqp_test

import (
	"context"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/amqp"
)

// All messages go to the exchange shop, with their topic as routing key.
func ExampleNew() {
	relay := func(ctx context.Context, store outbox.Store) error {
		sink, err := amqp.New(ctx, amqp.Options{
			Servers:    []string{"rabbit.example.com:5672"},
			User:       "relay",
			Password:   "change-me",
			Exchange:   "shop",
			RoutingKey: "{topic}",
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
