// Package wire defines what replicas, gateways and clients of the replicated key-value store
// send each other: commands ([Command]), their results ([Result]), and the messages with both
// ([Message]), with a compact binary encoding of each.
//
// It has types and codecs only. For the protocol see internal/kvd/consensus (replicas) and
// internal/kvd/consensus/session (clients).
//
// All integers are unsigned varints unless noted; byte strings follow their length. Decoders
// accept untrusted input: they never panic, never allocate more than the length of the input
// justifies, and refuse trailing bytes.
package wire
