// Package outboxload puts an outbox under load and checks what it does: it enqueues messages,
// each of which contains its key and its number, measures how long they take, and keeps a
// ledger that knows for every message whether it was committed and delivered, how often, and in
// which order.
//
// There are two kinds of run. [Consume] delivers a backlog that is complete when the relay
// starts on it. [Produce] enqueues, with or without a relay, in a closed loop or at a fixed
// rate. Both treat all outboxes alike (see [Subject]), so that their figures can be compared.
//
// Losing messages is not an error of the run: it returns a sample whose ledger reports them,
// and which is invalid.
package outboxload
