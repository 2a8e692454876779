package kafka_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/kafka"
)

// brokers is the address of the example's brokers, which are within the test. A real one is
// such as kafka1.example.com:9092,kafka2.example.com:9092.
func brokers() (addrs string, stop func()) {
	c, err := kfake.NewCluster(kfake.NumBrokers(2), kfake.SeedTopics(1, "shop.orders"))
	if err != nil {
		log.Fatal(err)
	}
	return strings.Join(c.ListenAddrs(), ","), c.Close
}

// A relay does this with the messages of an outbox: see the example of New.
func ExampleOpen() {
	addrs, stop := brokers()
	defer stop()
	ctx := context.Background()
	sink, err := kafka.Open(ctx, "kafka://"+addrs+"?topic-prefix=shop.")
	if err != nil {
		log.Fatalf("open the sink: %v", err)
	}
	defer sink.Close()
	order := outbox.Message{ID: outbox.NewID(), Topic: "orders", Key: "42", Payload: []byte(`{"number":42}`)}
	if errs := sink.Publish(ctx, []outbox.Message{order}); errs != nil {
		log.Fatalf("publish the order: %v", errs[0])
	}
	fmt.Println("all brokers in sync have it")
	// Output: all brokers in sync have it
}
