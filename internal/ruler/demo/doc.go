// Package demo is `weir demo --stack`: a shop on a PostgreSQL primary with a standby,
// written through two proxies behind a balancer, its events relayed to NATS, a lock
// and a counter in a replicated store, and a backup restored beside it. Whatever is
// killed, a ledger judges what weir promised.
//
// It knows the products as programs only: every one is a process of the weir that
// runs the demo.
package demo
