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

// The endpoint's address is the sink's, with parameters.
func ExampleOpen() {
	endpoint := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Println(r.URL.Path, string(body))
	}))
	defer endpoint.Close()

	ctx := context.Background()
	s, err := sink.Open(ctx, endpoint.URL+"/events/{topic}?timeout=30s")
	if err != nil {
		log.Fatalf("open the sink: %v", err)
	}
	defer s.Close()
	order := outbox.Message{ID: outbox.NewID(), Topic: "orders", Key: "42", Payload: []byte(`{"number":42}`)}
	if errs := s.Publish(ctx, []outbox.Message{order}); errs != nil {
		log.Fatalf("publish the order: %v", errs[0])
	}
	// Output: /events/orders {"number":42}
}
