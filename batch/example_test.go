package batch_test

import (
	"context"
	"fmt"
	"time"

	"github.com/weirdb/weir/batch"
)

// One key per table; each row gets its own id back.
func ExampleBatcher() {
	insert := func(table string, rows []string, ids []batch.Result[string]) error {
		for i, row := range rows {
			ids[i].Value = table + "/" + row
		}
		return nil
	}
	b := batch.New(batch.Options[string]{}, insert)
	defer b.Close()

	id, err := b.Submit(context.Background(), "orders", "apple")
	fmt.Println(id, err)
	// Output: orders/apple <nil>
}

// An event loop feeds the core the time. While the only lane is busy, items
// gather.
func ExampleQueue() {
	q := batch.NewQueue[string](batch.Config{Lanes: 1})
	now := time.Duration(0)
	for _, item := range []string{"a", "b", "c"} {
		_ = q.Push(now, item, len(item))
		if group, why := q.Take(now, nil); why != batch.ReasonNone {
			fmt.Println(now, group, why)
		}
		now += time.Millisecond
	}
	q.Done(now, 1, now)
	group, why := q.Take(now, nil)
	fmt.Println(now, group, why)
	// Output:
	// 0s [a] idle
	// 3ms [b c] idle
}
