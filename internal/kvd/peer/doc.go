// Package peer carries messages between the replicas of the key-value store,
// and between a replica and programs that speak its native protocol. It is
// transport only: it knows connections, frames and who is at the other end, and
// nothing of logs, leaders or sessions. [Transport] is a replica's side, [Conn]
// a client's.
//
// Between Up and Down of one address, messages arrive in the order in which Send took
// them, each once and without gaps, up to some point. What lies behind that point when
// the connection ends is lost, and neither side learns where it was: Raft sends again
// what it misses, and sessions number their operations. Large answers to queries
// (wire.ReadDone) to another replica travel beside everything else, so that messages
// between replicas do not wait behind them; when there are too many, they are dropped. A
// message that Send refuses has not left.
//
// Two replicas share one connection, which the one with the larger id dials, so
// that two dials never meet and acknowledgements of TCP ride on the answers.
//
//	Send ──► queue: one frame grows ──► writer: all since its last take, one write(2) ──► TCP
//	TCP ──► reader: all frames of one read(2) ──► Receive(from, messages), one call
//
// No timer takes part in that: while a write is under way, messages gather, and
// a connection that is idle writes at once. [Options.Delay] and
// [Transport.SetDelay] put a fixed delay there, for comparison only.
//
// A frame is a length (u32, little endian, of the payload), a CRC-32C of the
// payload and the payload: a byte that says what it holds, and for messages each
// of them behind its length (uvarint). A checksum or length that is wrong ends
// the connection. [Options.Secret] says what a shared secret proves, and what it does not.
package peer
