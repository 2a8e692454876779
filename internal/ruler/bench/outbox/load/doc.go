// Package outboxload puts an outbox under load and checks what it does: it hands
// messages over, of which each names its key and its number, times how long they
// take, and keeps a ledger that knows of every one whether it was committed and
// delivered, how often, and in which order.
//
// There are two kinds of run. [Consume] delivers a backlog that is complete when the
// relay starts on it. [Produce] enqueues, with a relay at work or without one,
// in a closed loop or at a fixed rate. Both treat every outbox alike (see
// [Subject]), so that their figures can be set against each other.
//
// A run in which messages are lost is no error: it yields a sample whose ledger
// says so, and is invalid.
package outboxload
