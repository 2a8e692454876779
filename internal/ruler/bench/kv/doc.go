// Package kvbench holds the experiments on weir kv: which clusters are started, at
// what load they are compared, and what the figures say. The load is package
// kvload, rounds and statistics package bench.
//
// The scenarios are those of reference report 2 (delays of batches, pendings,
// validation), and those that it leaves open: whether a longer run is as fast,
// what conflicts, distance and durability cost, and what another store does with
// the same load. Every replica is a process of its own; the durability of each
// row is said; every answer to a read is checked.
package kvbench
