package sink_test

import (
	"fmt"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink"
)

func ExampleTemplate() {
	m := outbox.Message{Topic: "orders", Key: "ada"}
	fmt.Println(sink.Template("shop.{topic}.{key}").Expand(&m))
	// Output: shop.orders.ada
}
