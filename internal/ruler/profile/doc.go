// Package profile takes the time of database operations apart at the boundaries
// that they cross: the pool, the driver, the socket, the network and the server,
// the scheduler of this process, and all the way back.
//
// Each operation has a Timeline, which is in exactly one segment at any moment.
// The pool, the driver's hooks and a wrapper around the socket move it from one
// segment to the next; the segments therefore add up to the latency, to the
// nanosecond, whatever happens. On Linux the kernel stamps each packet as it
// arrives, so the wait for the answer is told apart from the wait for this
// process's own scheduler, which reads it.
//
// The path of an ordinary application is measured: a goroutine, a pool, a driver. It is not the
// fastest way to load a server; packages below internal/ruler/bench do that. What the server
// does inside its segment is known only as far as the server or the kernel tells, and what is
// left is called not attributable.
package profile
