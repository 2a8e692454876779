// Package resp lets Redis clients speak to a replica: redis-cli,
// redis-benchmark and the libraries of all languages work unmodified, in RESP2
// and RESP3. It parses everything that a connection's buffer holds, turns the
// commands into kvwire.Commands, hands them over in one batch, and writes the
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
// weir holds strings only. Commands of Redis' other types are refused in words.
package resp
