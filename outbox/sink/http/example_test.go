package http_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/weirdb/weir/outbox"
	sink "github.com/weirdb/weir/outbox/sink/http"
)

// The endpoint gets a CloudEvent in binary mode: attributes as headers.
func ExampleNew() {
	endpoint := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Println(r.URL.Path, r.Header.Get("ce-type"), r.Header.Get("ce-partitionkey"), string(body))
	}))
	defer endpoint.Close()

	ctx := context.Background()
	s, err := sink.New(ctx, sink.Options{URL: endpoint.URL + "/events/{topic}"})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	errs := s.Publish(ctx, []outbox.Message{{
		Topic: "orders", Key: "ada", Payload: []byte(`{"number":42}`), Headers: map[string]string{"type": "order.placed"},
	}})
	fmt.Println(errs)
	// Output:
	// /events/orders order.placed ada {"number":42}
	// []
}
