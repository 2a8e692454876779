// Package peer carries messages between the replicas of the key-value store,
// and between a replica and programs that speak its native protocol. It is
// transport only: it knows connections, frames and who is at the other end, and
// nothing of logs, leaders or sessions. [Transport] is a replica's side, [Conn]
// a client's.
//
// Between Up and Down of one address, messages arrive in the order in which Send accepted
// them, each once and without gaps, up to some point. What comes after that point when
// the connection ends is lost, and neither side learns where it was: Raft resends
// what is missing, and sessions number their operations. Large answers to queries
// (wire.ReadDone) to another replica are sent beside everything else, so that messages
// between replicas do not wait behind them; if there are too many, they are dropped. A
// message that Send refuses was not sent.
//
// Two replicas share one connection, which the one with the larger id dials, so
// that two dials never meet and TCP acknowledgements travel with the answers.
//
//	Send ──► queue: one frame grows ──► writer: all since its last take, one write(2) ──► TCP
//	TCP ──► reader: all frames of one read(2) ──► Receive(from, messages), one call
//
// No timer is involved: while a write is in progress, messages gather, and
// an idle connection writes at once. [Options.Delay] and
// [Transport.SetDelay] add a fixed delay, for comparison only.
//
// A frame is a length (u32, little endian, of the payload), a CRC-32C of the
// payload and the payload: a byte for the kind of frame, and for messages each
// of them after its length (uvarint). A wrong checksum or length ends
// the connection. [Options.Secret] says what a shared secret proves, and what it does not.
package peer
