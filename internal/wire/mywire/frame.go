// Package mywire implements the MySQL and MariaDB client/server protocol (protocol version 10,
// CLIENT_PROTOCOL_41): framing, messages, authentication and TLS, for both sides. It has no
// policy and no pools: it never decides who may log in, which server answers, or how long a
// connection lives.
//
// The data path (Peek, Answer, the Append builders, the ParseX views) works on byte slices that
// the caller owns, allocates nothing and copies nothing: a view aliases the payload that it was
// parsed from, and is valid as long as that. Login (Accept, Connect, Relay) is rare, so it
// reads blocking connections packet by packet, and never a byte beyond the last packet of the
// login: the connection can be handed to an event loop afterwards without losing anything.
//
// A packet is a 3-byte little-endian payload length, a sequence number, and the payload. A
// payload of MaxPayload bytes or more takes several packets, of which all but the last have
// exactly MaxPayload bytes; the last may be empty. Every ParseX function takes the joined
// payload. Sequence numbers start at 0 with each command and count the packets of both
// directions, so answers start at 1, or at 2 if the command took two packets.
//
// # Prepared statements and parameter types
//
// The "new parameters bound" byte of a COM_STMT_EXECUTE says whether the types of its
// parameters follow. libmysqlclient and MariaDB Connector/C set it on the first execution of a
// statement and whenever the application has bound parameters again; go-sql-driver always sets
// it. If it is clear, the server uses the types of the last execution of that statement on that
// connection. So a proxy that shares a server's statements among clients must remember the
// types that each client last sent for each of its own statements, and send them with every
// execution (AppendExecute does). COM_STMT_RESET keeps the types.
package mywire

import (
	"encoding/binary"
	"errors"
)

// HeaderLen is the length in bytes of a packet's header: a 3-byte length and a sequence number.
const HeaderLen = 4

// MaxPayload is the longest payload of one packet, in bytes. A packet with a
// payload of this length is continued by the next one.
const MaxPayload = 1<<24 - 1

// ErrMalformed reports bytes that are not a message of the protocol: too short, too long, or
// with counts that do not match. The connection they came from is out of step.
var ErrMalformed = errors.New("malformed protocol message")

// Peek returns the payload length and the sequence number of the packet at the start of buf. ok
// is false if buf has fewer than HeaderLen bytes.
func Peek(buf []byte) (length int, seq byte, ok bool) {
	if len(buf) < HeaderLen {
		return 0, 0, false
	}
	n := binary.LittleEndian.Uint32(buf)
	return int(n & MaxPayload), byte(n >> 24), true
}

// Message returns the length in bytes of the whole message at the start of buf: its packets,
// headers included, up to the one that is shorter than MaxPayload. ok is false if buf does not
// include the header of the last one; length is then a lower bound.
func Message(buf []byte) (length int, ok bool) {
	for {
		n, _, ok := Peek(buf[min(length, len(buf)):])
		if !ok {
			return length + HeaderLen, false
		}
		length += HeaderLen + n
		if n < MaxPayload {
			return length, true
		}
	}
}

// Payload returns the payload of the message at the start of buf, which must have all of its
// packets (see Message). It aliases buf if the message is one packet, and is copied if it has
// several. next is the sequence number that follows the last packet's.
func Payload(buf []byte) (payload []byte, next byte, err error) {
	n, seq, ok := Peek(buf)
	if !ok || len(buf) < HeaderLen+n {
		return nil, 0, ErrMalformed
	}
	if n < MaxPayload {
		return buf[HeaderLen : HeaderLen+n : HeaderLen+n], seq + 1, nil
	}
	for {
		payload = append(payload, buf[HeaderLen:HeaderLen+n]...)
		buf = buf[HeaderLen+n:]
		if n < MaxPayload {
			return payload, seq + 1, nil
		}
		var follows byte
		if n, follows, ok = Peek(buf); !ok || len(buf) < HeaderLen+n || follows != seq+1 {
			return nil, 0, ErrMalformed
		}
		seq = follows
	}
}

// NextSeq returns the sequence number after those of the whole packets in packets: that of the
// answer, if they are a command.
func NextSeq(packets []byte) (next byte) {
	for len(packets) >= HeaderLen {
		n, seq, _ := Peek(packets)
		next, packets = seq+1, packets[min(HeaderLen+n, len(packets)):]
	}
	return next
}

// AppendHeader appends the header of a packet. length must not exceed
// MaxPayload.
func AppendHeader(dst []byte, length int, seq byte) []byte {
	return append(dst, byte(length), byte(length>>8), byte(length>>16), seq)
}

// AppendPacket appends payload as one packet or, from MaxPayload bytes on, as several with
// increasing sequence numbers.
func AppendPacket(dst []byte, seq byte, payload []byte) []byte {
	for len(payload) >= MaxPayload {
		dst = append(AppendHeader(dst, MaxPayload, seq), payload[:MaxPayload]...)
		payload, seq = payload[MaxPayload:], seq+1
	}
	return append(AppendHeader(dst, len(payload), seq), payload...)
}

// begin appends an empty header and returns its offset; end fills it in.
func begin(dst []byte, seq byte) ([]byte, int) {
	return append(dst, 0, 0, 0, seq), len(dst)
}

func end(dst []byte, at int) []byte {
	n := len(dst) - at - HeaderLen
	if n >= MaxPayload {
		seq := dst[at+3]
		payload := append([]byte(nil), dst[at+HeaderLen:]...)
		return AppendPacket(dst[:at], seq, payload)
	}
	dst[at], dst[at+1], dst[at+2] = byte(n), byte(n>>8), byte(n>>16)
	return dst
}
