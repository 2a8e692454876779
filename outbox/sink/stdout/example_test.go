package stdout_test

import (
	"context"
	"fmt"
	"log"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/stdout"
)

func ExampleNew() {
	ctx := context.Background()
	s, err := stdout.New(ctx, stdout.Options{Format: "payload"})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	errs := s.Publish(ctx, []outbox.Message{{Topic: "orders", Payload: []byte(`{"number":42}`)}})
	fmt.Println(errs)
	// Output:
	// {"number":42}
	// []
}

func ExampleOpen() {
	ctx := context.Background()
	s, err := stdout.Open(ctx, "stdout:?format=payload")
	if err != nil {
		log.Fatalf("open the sink: %v", err)
	}
	defer s.Close()
	order := outbox.Message{ID: outbox.NewID(), Topic: "orders", Key: "42", Payload: []byte(`{"number":42}`)}
	if errs := s.Publish(ctx, []outbox.Message{order}); errs != nil {
		log.Fatalf("publish the order: %v", errs[0])
	}
	// Output: {"number":42}
}
