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
