package kv_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/replica"
	"github.com/weirdb/weir/kv"
)

// cluster is the addresses of the examples' cluster: one replica, in memory. A real
// one is `weir kv serve` on three machines or more.
func cluster() (addrs []string, stop func()) {
	r, err := replica.Open(replica.Config{
		ID: 1, Members: []consensus.Member{{ID: 1, Addr: "127.0.0.1:7401"}}, Memory: true,
		Listen: "127.0.0.1:0", // any free port
	})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return []string{r.Addr()}, func() {
		cancel()
		if err := <-ended; err != nil {
			panic(err)
		}
	}
}

// connect opens a client of the examples' cluster.
func connect() (ctx context.Context, c *kv.Client, end func()) {
	addrs, stop := cluster()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	c, err := kv.Open(ctx, addrs, kv.Options{})
	if err != nil {
		panic(err)
	}
	return ctx, c, func() {
		if err := c.Close(); err != nil {
			panic(err)
		}
		cancel()
		stop()
	}
}

func ExampleOpen() {
	addrs, stop := cluster() // such as 10.0.0.1:7401, 10.0.0.2:7401, 10.0.0.3:7401
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := kv.Open(ctx, addrs, kv.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	if _, err := c.Put(ctx, "greeting", []byte("hello")); err != nil {
		fmt.Println(err)
		return
	}
	item, err := c.Get(ctx, "greeting")
	fmt.Printf("%s %v\n", item.Value, err)
	// Output: hello <nil>
}

// A value is replaced only if no other client has written it meanwhile.
func ExampleSession_CompareAndSwap() {
	ctx, c, end := connect()
	defer end()
	rev, err := c.Put(ctx, "balance", []byte("100"))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = c.CompareAndSwap(ctx, "balance", rev, []byte("90"))
	fmt.Println("at the revision that was read:", err)
	_, err = c.CompareAndSwap(ctx, "balance", rev, []byte("80"))
	fmt.Println("once more:", errors.Is(err, kv.ErrConflict))
	// Output:
	// at the revision that was read: <nil>
	// once more: true
}

// An increment happens exactly once, whatever leaders and connections do meanwhile.
func ExampleSession_Increment() {
	ctx, c, end := connect()
	defer end()
	for range 3 {
		n, err := c.Increment(ctx, "visits", 1)
		fmt.Println(n, err)
	}
	// Output:
	// 1 <nil>
	// 2 <nil>
	// 3 <nil>
}

func ExampleSession_Range() {
	ctx, c, end := connect()
	defer end()
	for _, key := range []string{"fruit/pear", "fruit/apple", "nut/hazel", "fruit/quince"} {
		if _, err := c.Put(ctx, key, []byte("1 kg")); err != nil {
			fmt.Println(err)
			return
		}
	}
	items, more, err := c.Range(ctx, "fruit/", kv.PrefixEnd("fruit/"), kv.Limit(2))
	for _, item := range items {
		fmt.Printf("%s: %s\n", item.Key, item.Value)
	}
	fmt.Println("more:", more, err)
	// Output:
	// fruit/apple: 1 kg
	// fruit/pear: 1 kg
	// more: true <nil>
}

// A lock is a key that only one client can create, and that is deleted with its holder's lease.
func ExampleSession_Grant() {
	ctx, c, end := connect()
	defer end()
	lease, err := c.Grant(ctx, 30*time.Second) // c.Keep renews it
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = c.Put(ctx, "lock", []byte("me"), kv.IfAbsent(), kv.WithLease(lease))
	fmt.Println("the first:", err)
	_, err = c.Put(ctx, "lock", []byte("you"), kv.IfAbsent())
	fmt.Println("the second:", errors.Is(err, kv.ErrConflict))
	if err := c.Revoke(ctx, lease); err != nil {
		fmt.Println(err)
		return
	}
	_, err = c.Get(ctx, "lock")
	fmt.Println("once it was given back:", errors.Is(err, kv.ErrNotFound))
	// Output:
	// the first: <nil>
	// the second: true
	// once it was given back: true
}

func ExampleClient_Watch() {
	ctx, c, end := connect()
	defer end()
	rev, err := c.Put(ctx, "config/a", []byte("1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	w, err := c.Watch("config/", kv.PrefixEnd("config/"), rev+1) // what comes after that write
	if err != nil {
		fmt.Println(err)
		return
	}
	defer w.Close()
	if _, err := c.Put(ctx, "config/b", []byte("2")); err != nil {
		fmt.Println(err)
		return
	}
	changes, err := w.Next(ctx)
	for _, change := range changes {
		fmt.Printf("%s = %s\n", change.Key, change.Value)
	}
	fmt.Println(err)
	// Output:
	// config/b = 2
	// <nil>
}
