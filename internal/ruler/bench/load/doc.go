// Package load is a closed-loop load generator for database servers and for the
// proxies before them, without a protocol of its own: pgload and myload bring
// theirs.
//
// It shares the machine with what it measures, so it is built to cost little: a
// few operating system threads, each with an epoll instance of its own, drive
// all connections over the raw protocol, one operation in flight on each. Go's
// network poller is not used, since it starves when many goroutines can run:
// answers then wait in the socket, and the latency reported is the generator's.
//
// Every operation carries its client and its sequence number, and every answer
// is checked against the one expected. After an insert run a Checker compares
// the table with what was acknowledged. A rate of wrong answers is worth nothing.
//
// Linux only.
package load
