// Package kv is the Go client of weir's replicated key-value store (weir kv
// serve). Strong operations are linearizable; weak ones are served by the
// nearest replica and promise a causal view per session: docs/kv.md says
// what they may and may not show.
//
//	c, err := kv.Open(ctx, []string{"10.0.0.1:7401", "10.0.0.2:7401", "10.0.0.3:7401"}, kv.Options{})
//	…
//	rev, err := c.Put(ctx, "greeting", []byte("hello"))
//	item, err := c.Get(ctx, "greeting", kv.Weak())
//
// Every write happens exactly once, even if leaders or connections fail. If a
// context ends first, or the cluster has forgotten the session, the error is an
// [UnknownError]: the write may have happened, or may still happen. A Client is
// one session: its later operations see what it did. Use [Client.NewSession]
// for independent ones over the same connections.
package kv
