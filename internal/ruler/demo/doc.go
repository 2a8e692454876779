// Package demo is `weir demo --stack`: a shop on a PostgreSQL primary with a standby, written
// through two proxies behind a balancer, with its events relayed to NATS, a lock and a counter
// in a replicated store, and a backup that is restored next to it. Processes are killed while a
// ledger checks what weir promised.
//
// It uses the products only as programs: each runs as a process of the weir that runs the demo.
package demo
