// Package resp serves Redis clients of a replica: redis-cli, redis-benchmark and client
// libraries work unmodified, in RESP2 and RESP3. It parses everything in a connection's buffer,
// turns the commands into wire.Commands, submits them as one batch, and writes the replies in
// the order of the commands, with one write per turn, in whatever order they are completed.
//
// It knows nothing of consensus: a [Backend] executes requests at the [Level] that the
// connection has chosen, and tells a [Server] of changes, for CLIENT TRACKING and WEIR.WATCH.
//
// A connection has two goroutines. The reader parses, and waits when too much is in flight.
// This is the back-pressure: no reply is dropped, and what is kept for a client that does not
// read is bounded. The writer waits for completions; if the backend completes requests at once,
// the reader writes instead.
//
// weir has strings only, and answers commands of other types with an error that says so. Its
// commands answer like those of Redis 7.0, byte for byte, as tests check, except that:
//
//   - Keys are ordered: KEYS and SCAN answer in their order. A cursor of SCAN is known only to the
//     replica that returned it. RANDOMKEY chooses among the first keys.
//   - WATCH compares revisions at EXEC. A key that was absent and is absent again has not changed,
//     whatever happened meanwhile.
//   - Until all replicas know format 3 of the log, a sum that does not fit 64 bits has the same
//     error as a value that is not an integer.
//   - A key has at most 64 KiB and a value 8 MiB, and a time to live ends before 2262.
//   - EXPIRE does not support XX together with LT.
//   - At the levels session and local, DEL and EXPIRE are weak: they answer the number of keys
//     given, since it is not known yet how many existed.
//   - CLIENT TRACKING needs RESP3, without redirection to another connection.
package resp
