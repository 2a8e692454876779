// Package profile divides the time of database operations at the boundaries that they cross:
// the pool, the driver, the socket, the network and the server, the scheduler of this process,
// and back again.
//
// Each operation has a timeline, which is in exactly one segment at any moment. The pool, the
// driver's hooks and a wrapper around the socket move it from one segment to the next; the
// segments therefore always add up to the latency, to the nanosecond. On Linux the kernel
// stamps each packet as it arrives, so that waiting for the answer can be told from waiting for
// this process's own scheduler, which reads it.
//
// The package measures the path of an ordinary application: a goroutine, a pool, a driver. That
// is not the fastest way to load a server; packages below internal/ruler/bench do that. What
// the server does within its segment is known only as far as the server or the kernel reports
// it; the rest is called not attributable.
package profile
