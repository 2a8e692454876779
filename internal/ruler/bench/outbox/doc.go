// Package outboxbench holds the experiments on outboxes: what is started, which designs are
// compared, under which load, and what the figures mean. Package outboxload has the load and
// its ledger, package bench the rounds and statistics.
//
// The phases are those of reference report 5, with weir's own ways of claiming next to the one
// that it measures. The sides of a comparison take turns, and every round has a ledger.
package outboxbench
