package redis_test

import (
	"context"
	"log"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/redis"
)

// Each topic has a stream, such as shop:orders, of about the last million entries. A test of the package sets another.
var address = "redis://redis.example.com?stream-prefix=shop:&maxlen=1000000"

// A relay does this with the messages of an outbox: see the example of New.
func ExampleOpen() {
	ctx := context.Background()
	sink, err := redis.Open(ctx, address)
	if err != nil {
		log.Fatalf("open the sink: %v", err)
	}
	defer sink.Close()
	order := outbox.Message{ID: outbox.NewID(), Topic: "orders", Key: "42", Payload: []byte(`{"number":42}`)}
	if errs := sink.Publish(ctx, []outbox.Message{order}); errs != nil {
		log.Fatalf("publish the order: %v", errs[0])
	}
}
