package outbox

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// Members of a group do not fail by each other's size: an INSERT has a bound in bytes,
// and what exceeds it alone is alone.
func TestGroupKeepsInsertsSmall(t *testing.T) { synctest.Test(t, groupKeepsInsertsSmall) }

func groupKeepsInsertsSmall(t *testing.T) {
	var mu sync.Mutex
	var inserts [][]int // payloads
	first := make(chan struct{})
	tx := Tx{dialect: dialectMySQL, table: DefaultTable, exec: func(_ context.Context, text string, args ...any) error {
		mu.Lock()
		n := len(inserts)
		var sizes []int
		for i := 4; i < len(args); i += 7 {
			sizes = append(sizes, len(args[i].([]byte)))
		}
		inserts = append(inserts, sizes)
		mu.Unlock()
		if n == 0 {
			<-first
		}
		if !strings.HasPrefix(text, "INSERT") {
			t.Errorf("%s", text)
		}
		return nil
	}}
	g := NewGroup(tx)
	var members sync.WaitGroup
	submit := func(size int) {
		members.Go(func() {
			if err := g.Enqueue(t.Context(), Message{Topic: "t", Payload: make([]byte, size)}); err != nil {
				t.Error(err)
			}
		})
	}
	submit(1)
	synctest.Wait() // the others gather behind it
	for range 40 {
		submit(100_000)
	}
	submit(5_000_000)
	for range 300 {
		submit(10)
	}
	synctest.Wait()
	close(first)
	members.Wait()
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	for _, sizes := range inserts {
		sum := 0
		for _, n := range sizes {
			sum += n
		}
		if sum > maxInsertBytes && len(sizes) > 1 || len(sizes) > maxInsert {
			t.Errorf("an INSERT of %d messages with %d bytes", len(sizes), sum)
		}
	}
	// Many messages of one call go by several statements of that size.
	inserts = nil
	msgs := make([]Message, 40)
	for i := range msgs {
		msgs[i] = Message{Topic: "t", Payload: make([]byte, 100_000)}
	}
	if err := Enqueue(t.Context(), tx, msgs...); err != nil {
		t.Error(err)
	}
	if len(inserts) != 4 {
		t.Errorf("%d statements for 4 MB, want 4", len(inserts))
	}
}
