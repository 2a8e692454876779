// Package outboxload puts an outbox under load and checks what it does: it hands
// messages over, of which each names its key and its number, times how long they
// take, and keeps a ledger that knows of every one whether it was committed and
// delivered, how often, and in which order.
//
// There are three kinds of run. [Consume] delivers a backlog that lies there when
// the relay is let go. [Produce] enqueues, with a relay at work or without one,
// in a closed loop or at a fixed rate. Both treat every outbox alike (see
// [Subject]), so that their figures can be set against each other.
//
// A run in which messages are lost is no error: it yields a sample whose ledger
// says so, and anyone who judges it finds it invalid.
package outboxload
