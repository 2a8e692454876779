package nats_test

import (
	"context"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/nats"
)

// The stream SHOP, with subjects such as shop.orders, is made if it is missing.
func ExampleNew() {
	relay := func(ctx context.Context, store outbox.Store) error {
		sink, err := nats.New(ctx, nats.Options{
			Servers:  []string{"nats1.example.com:4222", "nats2.example.com:4222"},
			Subject:  "shop.{topic}",
			Stream:   "SHOP",
			Create:   true,
			Subjects: []string{"shop.>"},
			Replicas: 3,
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
