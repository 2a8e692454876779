package nats_test

import (
	"context"
	"log"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/nats"
)

// The stream SHOP has subjects such as shop.orders, and is created if it is missing. A test of the package sets another.
var address = "nats://broker.example.com?stream=SHOP&subject=shop.{topic}&create=true"

// A relay does this with the messages of an outbox: see the example of New.
func ExampleOpen() {
	ctx := context.Background()
	sink, err := nats.Open(ctx, address)
	if err != nil {
		log.Fatalf("open the sink: %v", err)
	}
	defer sink.Close()
	order := outbox.Message{ID: outbox.NewID(), Topic: "orders", Key: "42", Payload: []byte(`{"number":42}`)}
	if errs := sink.Publish(ctx, []outbox.Message{order}); errs != nil {
		log.Fatalf("publish the order: %v", errs[0])
	}
}
