// Package outboxbench is the benchmark of weir outbox: what is started, which designs are
// compared, under which load, and what the figures mean. Package outboxload has the load and
// its ledger, package bench the rounds and statistics.
//
// The phases are those of reference report 5, which measures SKIP LOCKED; weir's claims poll and
// log are compared with it. The sides of a comparison take turns, and every round has a ledger.
package outboxbench
