// Package kvload is a closed-loop load generator for key-value stores: streams,
// each of which is one session that always has the same number of operations
// under way, over a Driver for the store's own protocol.
//
// Operations are strong or weak, reads or writes, in shares that are set; keys
// are drawn with a skew that is set. What a store lacks is replaced:
// one without weak writes takes them as ordinary ones, and says so.
//
// Every answer to a read is checked: it must be a value of the key that was asked
// for. A small part of the operations goes to a key that only the one stream
// writes, so that what a session must see of its own writes can be checked, too,
// without a model of the store. A rate of wrong answers is worth nothing.
//
// The generator shares the machine with what it measures. A stream is one
// goroutine, which takes all answers that have come, and sends the operations
// that take their place in one write. Its streams are scheduled by Go: with many
// of them, answers wait in the socket until a processor is free, and the latency
// is in part the generator's own, as it is in any client that is built that way.
package kvload
