package wire

import (
	"fmt"
	"strconv"
)

// Fields of a Message, as bits of the bitmap that precedes them, in the order of encoding. The
// most frequent ones fit the bitmap's first byte.
const (
	hasView = 1 << iota
	hasSession
	hasSeq
	hasData
	hasFlags
	hasIndex
	hasStable
	hasRevision
	hasRequest
	hasAck
	hasPrior
	hasBundle
	hasCode
	hasLeader
	hasCount
	hasTime
	hasRecords

	messageFields = hasRecords<<1 - 1
)

// Limits of a Message.
const (
	MaxBundle  = 1 << 16 // writes of a bundle
	MaxRecords = 1 << 17 // records of a pool; records hold no records
)

func (m *Message) fields() uint64 {
	var f uint64
	set := func(present bool, bit uint64) {
		if present {
			f |= bit
		}
	}
	set(m.View != 0, hasView)
	set(m.Session != 0, hasSession)
	set(m.Seq != 0, hasSeq)
	set(len(m.Data) != 0, hasData)
	set(m.Flags != 0, hasFlags)
	set(m.Index != 0, hasIndex)
	set(m.Stable != 0, hasStable)
	set(m.Revision != 0, hasRevision)
	set(m.Request != 0, hasRequest)
	set(m.Ack != 0, hasAck)
	set(m.Prior != 0, hasPrior)
	set(len(m.Bundle) != 0, hasBundle)
	set(m.Code != 0, hasCode)
	set(m.Leader != 0, hasLeader)
	set(m.Count != 0, hasCount)
	set(m.Time != 0, hasTime)
	set(len(m.Records) != 0, hasRecords)
	return f
}

// Append appends the binary form of m to b. It does not include its length: the transport
// frames messages.
func (m *Message) Append(b []byte) []byte {
	f := m.fields()
	b = append(b, byte(m.Kind))
	b = appendUint(b, f)
	if f&hasView != 0 {
		b = appendUint(b, m.View)
	}
	if f&hasSession != 0 {
		b = appendUint(b, m.Session)
	}
	if f&hasSeq != 0 {
		b = appendUint(b, m.Seq)
	}
	if f&hasData != 0 {
		b = appendString(b, m.Data)
	}
	if f&hasFlags != 0 {
		b = append(b, m.Flags)
	}
	if f&hasIndex != 0 {
		b = appendUint(b, m.Index)
	}
	if f&hasStable != 0 {
		b = appendUint(b, m.Stable)
	}
	if f >= hasRevision {
		b = m.appendRare(b, f)
	}
	return b
}

func (m *Message) appendRare(b []byte, f uint64) []byte {
	for i, v := range [...]uint64{m.Revision, m.Request, m.Ack, m.Prior} {
		if f&(hasRevision<<i) != 0 {
			b = appendUint(b, v)
		}
	}
	if f&hasBundle != 0 {
		b = appendUint(b, uint64(len(m.Bundle)))
		for i := range m.Bundle {
			b = appendUint(b, m.Bundle[i].tagged())
			b = appendString(b, m.Bundle[i].Command)
		}
	}
	if f&hasCode != 0 {
		b = append(b, m.Code)
	}
	if f&hasLeader != 0 {
		b = appendUint(b, m.Leader)
	}
	if f&hasCount != 0 {
		b = appendUint(b, m.Count)
	}
	if f&hasTime != 0 {
		b = appendInt(b, m.Time)
	}
	if f&hasRecords != 0 {
		b = appendUint(b, uint64(len(m.Records)))
		for i := range m.Records {
			b = m.Records[i].Append(b)
		}
	}
	return b
}

// Size returns the number of bytes that Append appends.
func (m *Message) Size() int {
	f := m.fields()
	n := 1 + sizeUint(f)
	for _, v := range [...]uint64{m.View, m.Session, m.Seq, m.Index, m.Stable, m.Revision, m.Request, m.Ack, m.Prior, m.Leader, m.Count} {
		if v != 0 {
			n += sizeUint(v)
		}
	}
	if f&hasData != 0 {
		n += sizeString(len(m.Data))
	}
	if f&hasFlags != 0 {
		n++
	}
	if f&hasCode != 0 {
		n++
	}
	if f&hasTime != 0 {
		n += sizeInt(m.Time)
	}
	if f&hasBundle != 0 {
		n += sizeUint(uint64(len(m.Bundle)))
		for i := range m.Bundle {
			n += sizeUint(m.Bundle[i].tagged()) + sizeString(len(m.Bundle[i].Command))
		}
	}
	if f&hasRecords != 0 {
		n += sizeUint(uint64(len(m.Records)))
		for i := range m.Records {
			n += m.Records[i].Size()
		}
	}
	return n
}

// Decode decodes a message, the whole of b. Data and the commands of bundles share b's memory:
// a caller that keeps them must keep or copy b. Bundle and Records are new slices. After an error m
// is invalid.
func (m *Message) Decode(b []byte) error {
	r := reader{b: b}
	m.read(&r, 0)
	if err := r.end(); err != nil {
		return fmt.Errorf("decode message: %w", err)
	}
	return nil
}

func (m *Message) read(r *reader, depth int) {
	*m = Message{Kind: Kind(r.byte())}
	f := r.bitmap(messageFields)
	if f&hasView != 0 {
		m.View = r.present()
	}
	if f&hasSession != 0 {
		m.Session = r.present()
	}
	if f&hasSeq != 0 {
		m.Seq = r.present()
	}
	if f&hasData != 0 {
		m.Data = r.presentBytes()
	}
	if f&hasFlags != 0 {
		m.Flags = r.presentByte()
	}
	if f&hasIndex != 0 {
		m.Index = r.present()
	}
	if f&hasStable != 0 {
		m.Stable = r.present()
	}
	if f >= hasRevision {
		m.readRare(r, f, depth)
	}
	if m.Kind == 0 || m.Kind > kinds {
		r.fail(errUnknown)
	}
}

func (m *Message) readRare(r *reader, f uint64, depth int) {
	for i, v := range [...]*uint64{&m.Revision, &m.Request, &m.Ack, &m.Prior} {
		if f&(hasRevision<<i) != 0 {
			*v = r.present()
		}
	}
	if f&hasBundle != 0 {
		n := r.count(MaxBundle, 2)
		m.Bundle = make([]Write, 0, n)
		for range n {
			tagged := r.uint()
			m.Bundle = append(m.Bundle, Write{Seq: tagged >> 1, Strong: tagged&1 != 0, Command: r.bytes()})
		}
	}
	if f&hasCode != 0 {
		m.Code = r.presentByte()
	}
	if f&hasLeader != 0 {
		m.Leader = r.present()
	}
	if f&hasCount != 0 {
		m.Count = r.present()
	}
	if f&hasTime != 0 {
		m.Time = r.presentInt()
	}
	if f&hasRecords != 0 {
		m.readRecords(r, depth)
	}
}

func (m *Message) readRecords(r *reader, depth int) {
	if depth > 0 {
		r.fail(errDepth)
		return
	}
	n := r.count(MaxRecords, 2)
	// A record takes much more memory than encoded: memory is allocated for what was read, not
	// for the announced length.
	m.Records = make([]Message, 0, min(n, 64))
	for range n {
		var record Message
		record.read(r, depth+1)
		if r.err != nil {
			return
		}
		m.Records = append(m.Records, record)
	}
}

const kinds = Inspect

var kindNames = [kinds + 1]string{
	"?", "Strong", "Record", "Weak", "Read", "WeakRead", "Register", "Stable",
	"Done", "Spec", "Vote", "WeakDone", "ReadDone", "Redirect", "Refused", "NewView",
	"Raft", "PoolCollect", "Pool", "Lease", "Configure",
	"Watch", "WatchEvent", "Unwatch", "Inspect",
}

// tagged returns the number of a write, with its lowest bit set if the write is strong.
func (w *Write) tagged() uint64 {
	if w.Strong {
		return w.Seq<<1 | 1
	}
	return w.Seq << 1
}

// String returns the name of the kind.
func (k Kind) String() string {
	if k == 0 || k > kinds {
		return "Kind(" + strconv.Itoa(int(k)) + ")"
	}
	return kindNames[k]
}

// String formats the non-zero fields on one line, for logs and tests, with the lengths of byte
// strings.
func (m *Message) String() string {
	b := []byte(m.Kind.String())
	for i, name := range [...]string{"yes", "applied", "nearest", "fast", "forward", "end"} {
		if m.Flags&(1<<i) != 0 {
			b = append(append(b, ' '), name...)
		}
	}
	number := func(name string, v uint64) {
		if v != 0 {
			b = append(append(append(b, ' '), name...), '=')
			b = strconv.AppendUint(b, v, 10)
		}
	}
	number("code", uint64(m.Code))
	number("view", m.View)
	number("session", m.Session)
	number("seq", m.Seq)
	number("ack", m.Ack)
	number("prior", m.Prior)
	number("stable", m.Stable)
	number("index", m.Index)
	number("revision", m.Revision)
	number("request", m.Request)
	number("leader", m.Leader)
	number("count", m.Count)
	if m.Time != 0 {
		b = strconv.AppendInt(append(b, " time="...), m.Time, 10)
	}
	number("data", uint64(len(m.Data)))
	number("bundle", uint64(len(m.Bundle)))
	number("records", uint64(len(m.Records)))
	return string(b)
}
