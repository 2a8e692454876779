package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// preface is what a dialed side reads first: the name of the protocol and its
// version. Its first byte tells it from TLS, whose handshakes begin with 0x16.
const (
	preface        = "weirkv"
	version        = 1
	prefaceBytes   = len(preface) + 2 // and the version, u16
	tlsFirstByte   = 0x16
	maxHandshake   = 4 << 10 // bytes of a handshake's frame
	nonceBytes     = 32
	proofBytes     = 32
	maxReasonBytes = 1 << 10
)

// role is what a connection is for.
type role uint8

const (
	roleReplica  role = iota + 1 // messages between replicas
	roleClient                   // messages of a client
	roleSnapshot                 // one snapshot, from the dialing replica
	roleEnd
)

// hello is what the dialing side says first.
type hello struct {
	Role    role
	Cluster string // a client may leave it empty: any
	To      uint64 // id of the replica that is meant; 0: any, of clients only
	Self    self
	Nonce   [nonceBytes]byte
	Latency time.Duration // a client's wish for its answers to travel as long
}

// challenge is the dialed side's answer.
type challenge struct {
	Cluster string
	Self    self
	Nonce   [nonceBytes]byte
	Secret  bool // a proof is demanded
}

// self is what each side says of itself.
type self struct {
	ID       uint64
	Address  string
	Instance [16]byte
	Term     uint64
	Index    uint64
}

// refusal ends a handshake, from either side. Its form is the same in all
// versions of the protocol.
type refusal struct {
	Code   Code
	Reason string
}

func (s *self) append(b []byte) []byte {
	b = binary.AppendUvarint(b, s.ID)
	b = appendText(b, s.Address)
	b = append(b, s.Instance[:]...)
	b = binary.AppendUvarint(b, s.Term)
	return binary.AppendUvarint(b, s.Index)
}

func (h *hello) append(b []byte) []byte {
	b = append(b, byte(h.Role))
	b = appendText(b, h.Cluster)
	b = binary.AppendUvarint(b, h.To)
	b = h.Self.append(b)
	b = append(b, h.Nonce[:]...)
	return binary.AppendUvarint(b, uint64(h.Latency))
}

func (c *challenge) append(b []byte) []byte {
	b = appendText(b, c.Cluster)
	b = c.Self.append(b)
	b = append(b, c.Nonce[:]...)
	return append(b, flag(c.Secret))
}

func (r *refusal) append(b []byte) []byte {
	return appendText(append(b, byte(r.Code)), r.Reason)
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func flag(on bool) byte {
	if on {
		return 1
	}
	return 0
}

func decodeHello(b []byte) (h hello, err error) {
	f := fields{b: b}
	h.Role = role(f.byte())
	h.Cluster = f.text(maxCluster)
	h.To = f.number()
	h.Self = f.self()
	copy(h.Nonce[:], f.raw(nonceBytes))
	latency := f.number()
	h.Latency = time.Duration(latency)
	if err := f.end(); err != nil {
		return hello{}, fmt.Errorf("read hello: %w", err)
	}
	client := h.Role == roleClient
	switch {
	case h.Role == 0 || h.Role >= roleEnd:
		err = fmt.Errorf("role %d is unknown", h.Role)
	case client && h.Self.ID != 0:
		err = errors.New("a client has no replica's id")
	case !client && (h.Self.ID == 0 || Addr(h.Self.ID) >= FirstClient):
		err = fmt.Errorf("replica id %d is out of range", h.Self.ID)
	case !client && h.To == 0:
		err = errors.New("a replica must say whom it means")
	case latency > uint64(maxLatency):
		err = fmt.Errorf("latency %d ns is out of range", latency)
	}
	if err != nil {
		return hello{}, fmt.Errorf("read hello: %w", err)
	}
	return h, nil
}

func decodeChallenge(b []byte) (c challenge, err error) {
	f := fields{b: b}
	c.Cluster = f.text(maxCluster)
	c.Self = f.self()
	copy(c.Nonce[:], f.raw(nonceBytes))
	c.Secret = f.flag()
	if err := f.end(); err != nil {
		return challenge{}, fmt.Errorf("read challenge: %w", err)
	}
	return c, nil
}

func decodeRefusal(b []byte) (r refusal, err error) {
	f := fields{b: b}
	r.Code = Code(f.byte())
	r.Reason = f.text(maxReasonBytes)
	if err := f.end(); err != nil {
		return refusal{}, fmt.Errorf("read refusal: %w", err)
	}
	return r, nil
}

// fields reads a frame of the handshake. The first error stays, and everything
// after it is zero.
type fields struct {
	b   []byte
	err error
}

var errFields = errors.New("the bytes make no sense")

func (f *fields) raw(n int) []byte {
	if f.err != nil || len(f.b) < n {
		f.err = errFields
		return nil
	}
	v := f.b[:n]
	f.b = f.b[n:]
	return v
}

func (f *fields) byte() byte {
	if v := f.raw(1); v != nil {
		return v[0]
	}
	return 0
}

func (f *fields) flag() bool {
	v := f.byte()
	if v > 1 {
		f.err = errFields
	}
	return v == 1
}

func (f *fields) number() uint64 {
	v, n := binary.Uvarint(f.b)
	if f.err != nil || n <= 0 {
		f.err = errFields
		return 0
	}
	f.b = f.b[n:]
	return v
}

func (f *fields) text(most int) string {
	n := f.number()
	if n > uint64(most) {
		f.err = errFields
		return ""
	}
	return string(f.raw(int(n)))
}

func (f *fields) self() (s self) {
	s.ID = f.number()
	s.Address = f.text(maxAddress)
	copy(s.Instance[:], f.raw(len(s.Instance)))
	s.Term = f.number()
	s.Index = f.number()
	return s
}

func (f *fields) end() error {
	if f.err == nil && len(f.b) > 0 {
		f.err = errors.New("bytes are left over")
	}
	return f.err
}
