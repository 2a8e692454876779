// Package outboxbench holds the experiments on outboxes: what is started,
// which designs are compared, at what load, and what the figures say. The load
// and its ledger are package outboxload, rounds and statistics package bench.
//
// The phases are those of reference report 5, with weir's own ways of claiming
// beside the one that it measures, every side of a comparison in turn with the
// others, and a ledger in every round.
package outboxbench
