// Package resp lets Redis clients speak to a replica: redis-cli,
// redis-benchmark and the libraries of all languages work unmodified, in RESP2
// and RESP3. It parses everything that a connection's buffer holds, turns the
// commands into wire.Commands, hands them over in one batch, and writes the
// replies in the order of the commands with one write per turn, whatever the
// order in which they are completed.
//
// It knows nothing of consensus: a [Backend] does what is asked, at the [Level]
// that the connection has chosen, and tells a [Server] what was changed, for
// CLIENT TRACKING and WEIR.WATCH.
//
// A connection has two goroutines. The reader parses, and waits when too much is
// in flight, which is the back-pressure: a reply is never dropped, and what is
// kept for a client that does not read is bounded. The writer waits for
// completions; where the backend completes at once the reader writes instead.
//
// weir holds strings only, and answers commands of other types with an error that
// says so. Its own commands answer as Redis 7.0 does, byte for byte, which tests
// compare, except that:
//
//   - Keys are ordered: KEYS and SCAN answer in their order. A cursor of SCAN is
//     known to the replica that gave it. RANDOMKEY chooses among the first keys.
//   - WATCH compares revisions at EXEC. A key that was absent and is absent again
//     has not changed, whatever came between.
//   - Until all replicas know format 3 of the log, a sum that does not fit 64 bits is
//     refused in the same words as a value that is no integer.
//   - A key has 64 KiB at most, a value 8 MiB, and a time to live ends before 2262.
//   - EXPIRE does not know XX together with LT.
//   - At the levels session and local, DEL and EXPIRE are weak: they answer how
//     many keys were named, since how many there were is not known yet.
//   - CLIENT TRACKING needs RESP3, and tells the connection itself.
package resp
