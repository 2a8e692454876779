// Package loop runs an operation again and again and records how long it takes, in one of two
// ways that must not be confused.
//
// A closed loop has a fixed number of workers; each starts its next operation when the last one
// has ended. When the server stalls, so does the load, and the stall is recorded once per
// worker: the latencies are those of the workers, not those of users who would have arrived
// meanwhile.
//
// An open loop starts operations by a schedule, regardless of the server. Its latency counts
// from the intended start, so it includes users who would have arrived during a stall (G. Tene
// calls leaving them out coordinated omission). The time from the actual start is recorded
// separately, as service time.
//
//	intended start      handed out   a worker is free        answer
//	     |--- late -------->|--- backlog ---->|--- service ---->|
//	     |<------------------- latency ------------------------>|
//
// The package does not know what an operation is. It records and does not judge; package bench
// decides whether the generator itself was the limit.
package loop
