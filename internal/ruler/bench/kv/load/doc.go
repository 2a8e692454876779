// Package kvload is a closed-loop load generator for key-value stores. It runs streams, each of
// which is one session with a constant number of operations in flight, over a Driver for the
// store's protocol.
//
// Operations are strong or weak, reads or writes, in configurable shares, and keys have a
// configurable skew. What a store lacks is replaced: a store without weak writes executes them
// as ordinary ones, and its driver says so.
//
// Every answer to a read is checked: it must be a value of the requested key. A small share of
// the operations uses a key that only one stream writes, so that a session's view of its own
// writes can be checked, too, without a model of the store. A rate of wrong answers means
// nothing.
//
// The generator shares the machine with what it measures. A stream is one goroutine, which
// handles all answers that have arrived and sends the operations that replace them in one
// write. Go schedules the streams: with many of them, answers wait in the socket until a
// processor is free, so part of the latency is the generator's own, as in any client that is
// built this way.
package kvload
