// Package kvbench is the benchmark of weir kv: which clusters are started, under which load they
// are compared, and what the figures mean. Package kvload has the load, package bench the rounds
// and statistics.
//
// The experiments are those of reference report 2 (delays of batches, pendings, validation), and
// the questions that it leaves open: whether a longer run is as fast, what distance and
// durability cost, and how another store does under the same load. Every replica is a separate
// process; each row states its durability; every answer to a read is checked.
package kvbench
