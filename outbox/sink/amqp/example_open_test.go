package amqp_test

import (
	"context"
	"log"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/amqp"
)

// Messages go to the exchange shop, with their topic as routing key. A test of the package sets another.
var address = "amqp://relay:change-me@rabbit.example.com?exchange=shop&routing-key={topic}"

// A relay does this with the messages of an outbox: see the example of New.
func ExampleOpen() {
	ctx := context.Background()
	sink, err := amqp.Open(ctx, address)
	if err != nil {
		log.Fatalf("open the sink: %v", err)
	}
	defer sink.Close()
	order := outbox.Message{ID: outbox.NewID(), Topic: "orders", Key: "42", Payload: []byte(`{"number":42}`)}
	if errs := sink.Publish(ctx, []outbox.Message{order}); errs != nil {
		log.Fatalf("publish the order: %v", errs[0])
	}
}
