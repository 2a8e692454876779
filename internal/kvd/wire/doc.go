// Package wire is what replicas, gateways and clients of the replicated
// key-value store say to each other: the commands that change or read the
// store ([Command]), their answers ([Result]), and the messages that carry both
// ([Message]), with a compact binary form of each.
//
// It holds shapes and codecs only. Who may send what, and when, is the business
// of internal/kvd/consensus (replicas) and internal/kvd/consensus/session (clients).
//
// All integers are unsigned varints unless noted, byte strings are preceded by
// their length. Decoders take untrusted input: they never panic, never
// allocate more than the input's length warrants, and refuse trailing bytes.
package wire
