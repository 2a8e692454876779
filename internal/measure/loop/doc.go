// Package loop drives an operation again and again and records how long it took,
// in one of two ways that must not be confused.
//
// A closed loop has a fixed number of workers; each starts its next operation
// when the last one has ended. When the server stalls, so does the load, and the
// stall is recorded once per worker: the latencies say what a worker saw, and not
// what a user would have seen who came meanwhile.
//
// An open loop starts operations by a schedule that does not ask the server. Its
// latency counts from the intended start, so the users who would have come during
// a stall are in it (G. Tene calls leaving them out coordinated omission). The
// time from the actual start is recorded beside it, as service time.
//
//	intended start      handed out   a worker is free        answer
//	     |--- late -------->|--- backlog ---->|--- service ---->|
//	     |<------------------- latency ------------------------>|
//
// The package knows nothing of what an operation is. It records and does not
// judge; whether the generator itself was the limit is for package bench to say.
package loop
