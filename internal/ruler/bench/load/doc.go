// Package load is a closed-loop load generator for database servers and for the proxies in
// front of them. The packages pgload and myload implement the protocols.
//
// The generator shares the machine with what it measures, so it must cost little: a few
// operating system threads, each with its own epoll instance, drive all connections over the
// raw protocol, with one operation in flight on each. It does not use Go's network poller,
// which starves when many goroutines are runnable: answers then wait in the socket, and the
// generator would measure its own latency.
//
// Every operation carries its client and its sequence number, and every answer is compared with
// the expected one. After an insert run, a Checker compares the table with what was
// acknowledged: a rate of wrong answers means nothing.
//
// Linux only.
package load
