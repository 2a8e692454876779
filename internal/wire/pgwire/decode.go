package pgwire

import "encoding/binary"

// ParseMsg is a view of a Parse message. Its slices alias the body.
type ParseMsg struct {
	Name []byte // of the statement; empty for the unnamed one
	SQL  []byte // without the terminating NUL
	OIDs []byte // raw: int16 count, then an int32 each
	Tail []byte // everything after Name, as AppendParseRaw takes it
}

// ParseParse reads the body of a Parse message.
func ParseParse(body []byte) (ParseMsg, error) {
	name, tail, ok := cstring(body)
	if !ok {
		return ParseMsg{}, ErrMalformed
	}
	sql, oids, ok := cstring(tail)
	if !ok || len(oids) < 2 || len(oids) != 2+4*int(binary.BigEndian.Uint16(oids)) {
		return ParseMsg{}, ErrMalformed
	}
	return ParseMsg{Name: name, SQL: sql, OIDs: oids, Tail: tail}, nil
}

// OID returns the i-th declared parameter type; 0 leaves it to the server.
func (m ParseMsg) OID(i int) uint32 { return binary.BigEndian.Uint32(m.OIDs[2+4*i:]) }

// DescribeMsg is a view of a Describe or a Close message.
type DescribeMsg struct {
	Kind byte   // KindStatement or KindPortal
	Name []byte // aliases the body
}

// ParseDescribe reads the body of a Describe message.
func ParseDescribe(body []byte) (DescribeMsg, error) {
	if len(body) < 2 || (body[0] != KindStatement && body[0] != KindPortal) {
		return DescribeMsg{}, ErrMalformed
	}
	name, rest, ok := cstring(body[1:])
	if !ok || len(rest) != 0 {
		return DescribeMsg{}, ErrMalformed
	}
	return DescribeMsg{Kind: body[0], Name: name}, nil
}

// ExecuteMsg is a view of an Execute message.
type ExecuteMsg struct {
	Portal []byte // aliases the body
	Limit  uint32 // most rows to return; 0 means all
}

// ParseExecute reads the body of an Execute message.
func ParseExecute(body []byte) (ExecuteMsg, error) {
	portal, rest, ok := cstring(body)
	if !ok || len(rest) != 4 {
		return ExecuteMsg{}, ErrMalformed
	}
	return ExecuteMsg{Portal: portal, Limit: binary.BigEndian.Uint32(rest)}, nil
}

// soleString reads a body that is one NUL-terminated string and nothing else.
func soleString(body []byte) ([]byte, error) {
	s, rest, ok := cstring(body)
	if !ok || len(rest) != 0 {
		return nil, ErrMalformed
	}
	return s, nil
}

// ParseQuery returns the text of a Query message, aliasing the body.
func ParseQuery(body []byte) (sql []byte, err error) { return soleString(body) }

// ParseCommandComplete returns the tag of a CommandComplete message, aliasing
// the body.
func ParseCommandComplete(body []byte) (tag []byte, err error) { return soleString(body) }

// RowsAffected returns the number at the end of a command tag: 5 for
// "INSERT 0 5", "UPDATE 5" or "SELECT 5". ok is false when the tag counts
// nothing, as "BEGIN" does, or holds no number that fits.
func RowsAffected(tag []byte) (n uint64, ok bool) {
	i := len(tag)
	for i > 0 && tag[i-1] >= '0' && tag[i-1] <= '9' {
		i--
	}
	if i == 0 || i == len(tag) || tag[i-1] != ' ' || len(tag)-i > 19 {
		return 0, false
	}
	for _, c := range tag[i:] {
		n = n*10 + uint64(c-'0')
	}
	return n, true
}

// ParseReadyForQuery returns the transaction status of a ReadyForQuery.
func ParseReadyForQuery(body []byte) (status byte, err error) {
	if len(body) != 1 || (body[0] != StatusIdle && body[0] != StatusInTx && body[0] != StatusFailed) {
		return 0, ErrMalformed
	}
	return body[0], nil
}

// ParseParameterStatus returns name and value of a ParameterStatus message,
// aliasing the body.
func ParseParameterStatus(body []byte) (name, value []byte, err error) {
	name, rest, ok := cstring(body)
	if !ok {
		return nil, nil, ErrMalformed
	}
	value, err = soleString(rest)
	if err != nil {
		return nil, nil, err
	}
	return name, value, nil
}

// maxSecretLen is the longest cancel key that protocol 3.2 allows, in bytes.
const maxSecretLen = 256

// ParseBackendKeyData returns the process id and the cancel key of a
// BackendKeyData message. The key aliases the body.
func ParseBackendKeyData(body []byte) (pid uint32, secret []byte, err error) {
	if len(body) < 8 || len(body) > 4+maxSecretLen {
		return 0, nil, ErrMalformed
	}
	return binary.BigEndian.Uint32(body), body[4:], nil
}

// ParseNotification returns the parts of a NotificationResponse, aliasing the
// body.
func ParseNotification(body []byte) (pid uint32, channel, payload []byte, err error) {
	if len(body) < 4 {
		return 0, nil, nil, ErrMalformed
	}
	channel, payload, err = ParseParameterStatus(body[4:])
	return binary.BigEndian.Uint32(body), channel, payload, err
}

// fieldTail is the length of what follows the name in a RowDescription field.
const fieldTail = 4 + 2 + 4 + 2 + 4 + 2

// ParseRowDescription appends the fields of a RowDescription message to dst.
// Names are copied, so the fields outlive the body.
func ParseRowDescription(body []byte, dst []Field) ([]Field, error) {
	if len(body) < 2 {
		return dst, ErrMalformed
	}
	n, rest := int(binary.BigEndian.Uint16(body)), body[2:]
	for range n {
		name, tail, ok := cstring(rest)
		if !ok || len(tail) < fieldTail {
			return dst, ErrMalformed
		}
		dst = append(dst, Field{
			Name:     string(name),
			TableOID: binary.BigEndian.Uint32(tail),
			Column:   int16(binary.BigEndian.Uint16(tail[4:])),
			TypeOID:  binary.BigEndian.Uint32(tail[6:]),
			TypeSize: int16(binary.BigEndian.Uint16(tail[10:])),
			TypeMod:  int32(binary.BigEndian.Uint32(tail[12:])),
			Format:   int16(binary.BigEndian.Uint16(tail[16:])),
		})
		rest = tail[fieldTail:]
	}
	if len(rest) != 0 {
		return dst, ErrMalformed
	}
	return dst, nil
}

// ParseDataRow appends the values of a DataRow message to dst. They alias the
// body; nil is NULL.
func ParseDataRow(body []byte, dst [][]byte) ([][]byte, error) {
	dst, rest, ok := values(body, dst)
	if !ok || len(rest) != 0 {
		return dst, ErrMalformed
	}
	return dst, nil
}

// values reads an int16 count and that many length-prefixed values.
func values(b []byte, dst [][]byte) (out [][]byte, rest []byte, ok bool) {
	if len(b) < 2 {
		return dst, nil, false
	}
	n := int(binary.BigEndian.Uint16(b))
	b = b[2:]
	for range n {
		v, tail, ok := value(b)
		if !ok {
			return dst, nil, false
		}
		dst, b = append(dst, v), tail
	}
	return dst, b, true
}

// value reads one int32-length-prefixed value; length -1 is NULL and yields
// nil, length 0 yields an empty slice that is not nil.
func value(b []byte) (v, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, nil, false
	}
	n := int(int32(binary.BigEndian.Uint32(b)))
	b = b[4:]
	if n == -1 {
		return nil, b, true
	}
	if n < 0 || n > len(b) {
		return nil, nil, false
	}
	return b[:n:n], b[n:], true
}
