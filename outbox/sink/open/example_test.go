package open_test

import (
	"context"
	"fmt"
	"log"

	"github.com/weirdb/weir/outbox/sink/open"
)

func ExampleOpen() {
	s, err := open.Open(context.Background(), "stdout:?format=payload")
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	fmt.Println(s)
	// Output: stdout:
}

// Check reads an address without connecting to the broker.
func ExampleCheck() {
	fmt.Println(open.Check("nats://broker.example.com?stream=SHOP"))
	// Output: <nil>
}
