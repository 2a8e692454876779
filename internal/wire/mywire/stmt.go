package mywire

import "encoding/binary"

// maxParams is the most parameters that a statement can have.
const maxParams = 65535

// Prepared is the first packet of an answer to COM_STMT_PREPARE. After it come Params parameter
// definitions and Columns column definitions, if there are any, each list with an EOF after it
// unless CapDeprecateEOF applies.
type Prepared struct {
	StmtID   uint32
	Columns  uint16
	Params   uint16
	Warnings uint16
}

// ParsePrepared reads the first packet of an answer to COM_STMT_PREPARE.
func ParsePrepared(payload []byte) (Prepared, error) {
	if len(payload) < 9 || payload[0] != headerOK {
		return Prepared{}, ErrMalformed
	}
	p := Prepared{
		StmtID:  binary.LittleEndian.Uint32(payload[1:]),
		Columns: binary.LittleEndian.Uint16(payload[5:]),
		Params:  binary.LittleEndian.Uint16(payload[7:]),
	}
	if len(payload) >= 12 {
		p.Warnings = binary.LittleEndian.Uint16(payload[10:])
	}
	return p, nil
}

// AppendPrepared appends the first packet of an answer to COM_STMT_PREPARE.
func AppendPrepared(dst []byte, seq byte, p Prepared) []byte {
	dst = binary.LittleEndian.AppendUint32(append(AppendHeader(dst, 12, seq), headerOK), p.StmtID)
	dst = binary.LittleEndian.AppendUint16(dst, p.Columns)
	dst = binary.LittleEndian.AppendUint16(dst, p.Params)
	return binary.LittleEndian.AppendUint16(append(dst, 0), p.Warnings)
}

// ParseStmtID returns the statement of a COM_STMT_EXECUTE, _FETCH, _CLOSE, _RESET,
// _SEND_LONG_DATA or _BULK_EXECUTE.
func ParseStmtID(payload []byte) (id uint32, err error) {
	if len(payload) < 5 {
		return 0, ErrMalformed
	}
	return binary.LittleEndian.Uint32(payload[1:]), nil
}

// SetStmtID replaces the statement id in a command, or in the first packet of an answer to
// COM_STMT_PREPARE. packet starts with its header.
func SetStmtID(packet []byte, id uint32) {
	binary.LittleEndian.PutUint32(packet[HeaderLen+1:], id)
}

func appendStmt(dst []byte, command byte, id uint32, more int) []byte {
	return binary.LittleEndian.AppendUint32(append(AppendHeader(dst, 5+more, 0), command), id)
}

// AppendStmtClose appends a COM_STMT_CLOSE. It has no answer.
func AppendStmtClose(dst []byte, id uint32) []byte { return appendStmt(dst, ComStmtClose, id, 0) }

// AppendStmtReset appends a COM_STMT_RESET, which clears long data and closes the cursor.
func AppendStmtReset(dst []byte, id uint32) []byte { return appendStmt(dst, ComStmtReset, id, 0) }

// AppendFetch appends a COM_STMT_FETCH of the next rows of a cursor.
func AppendFetch(dst []byte, id, rows uint32) []byte {
	return binary.LittleEndian.AppendUint32(appendStmt(dst, ComStmtFetch, id, 4), rows)
}

// LongDataMsg is a view of a COM_STMT_SEND_LONG_DATA.
type LongDataMsg struct {
	StmtID uint32
	Param  uint16 // from 0
	Data   []byte // is appended to what was sent before
}

// AppendLongData appends a COM_STMT_SEND_LONG_DATA. It has no answer, not even if it fails: the
// server reports the error for the COM_STMT_EXECUTE.
func AppendLongData(dst []byte, m LongDataMsg) []byte {
	dst, at := begin(dst, 0)
	dst = binary.LittleEndian.AppendUint32(append(dst, ComStmtSendLongData), m.StmtID)
	return end(append(binary.LittleEndian.AppendUint16(dst, m.Param), m.Data...), at)
}

// ExecuteMsg is a view of a COM_STMT_EXECUTE.
type ExecuteMsg struct {
	StmtID     uint32
	Flags      byte
	Iterations uint32 // 1 from all clients
	NumParams  int    // those of the statement, and query attributes after them
	Nulls      []byte // a bit for each parameter, NullsLen(NumParams) bytes
	// NewTypes reports whether the message has types. If not, those of the last execution
	// apply.
	NewTypes bool
	// Types has 2 bytes for each parameter: the type, and 0x80 for unsigned. Empty unless
	// NewTypes. With query attributes (CapQueryAttributes) each is followed by a length-encoded
	// name.
	Types []byte
	// Values has the values, one after the other, of parameters that are not NULL and were not
	// sent as long data.
	Values []byte
}

// Cursor reports whether the execution opens a cursor.
func (m ExecuteMsg) Cursor() bool { return m.Flags&cursorFlags != 0 }

// ParseExecute parses a COM_STMT_EXECUTE of a statement with numParams parameters. It does not
// check the values: CheckValues does.
func ParseExecute(payload []byte, numParams int, caps Caps) (ExecuteMsg, error) {
	var m ExecuteMsg
	if len(payload) < 10 || payload[0] != ComStmtExecute || numParams > maxParams {
		return m, ErrMalformed
	}
	m.StmtID = binary.LittleEndian.Uint32(payload[1:])
	m.Flags = payload[5]
	m.Iterations = binary.LittleEndian.Uint32(payload[6:])
	m.NumParams = numParams
	rest := payload[10:]
	named := caps.Has(CapQueryAttributes)
	if named && (numParams > 0 || m.Flags&ExecuteParamCountSent != 0) {
		n, tail, ok := ParseLenenc(rest)
		if !ok || n < uint64(numParams) || n > maxParams {
			return m, ErrMalformed
		}
		m.NumParams, rest = int(n), tail
	}
	if m.NumParams == 0 {
		// libmysqlclient sends no byte here, some others an empty list.
		return m, nil
	}
	nulls := NullsLen(m.NumParams)
	if len(rest) < nulls+1 {
		return m, ErrMalformed
	}
	m.Nulls, m.NewTypes, rest = rest[:nulls:nulls], rest[nulls] != 0, rest[nulls+1:]
	if m.NewTypes {
		n, ok := typesLen(rest, m.NumParams, named)
		if !ok {
			return m, ErrMalformed
		}
		m.Types, rest = rest[:n:n], rest[n:]
	}
	m.Values = rest
	return m, nil
}

// typesLen returns the length in bytes of n types at the start of b.
func typesLen(b []byte, n int, named bool) (length int, ok bool) {
	if !named {
		return 2 * n, len(b) >= 2*n
	}
	rest := b
	for range n {
		if len(rest) < 2 {
			return 0, false
		}
		if _, rest, ok = ParseLenencString(rest[2:]); !ok {
			return 0, false
		}
	}
	return len(b) - len(rest), true
}

// CheckValues reports whether the values of an execution are complete: each as its type
// requires, and nothing after the last. types are those of the message or, if it has none,
// those of the execution before, 2 bytes each and without names. long has a bit for each
// parameter that was sent as long data, and may be shorter than Nulls.
func (m ExecuteMsg) CheckValues(types, long []byte) error {
	if len(types) != 2*m.NumParams {
		return ErrMalformed
	}
	rest, ok := m.Values, true
	for i := range m.NumParams {
		if IsNull(m.Nulls, i) || (i/8 < len(long) && IsNull(long, i)) {
			continue
		}
		if _, rest, ok = ParseValue(rest, types[2*i]); !ok {
			return ErrMalformed
		}
	}
	if len(rest) != 0 {
		return ErrMalformed
	}
	return nil
}

// AppendExecute appends a COM_STMT_EXECUTE with types. nulls has a bit and types have 2 bytes
// for each parameter; values are the raw values of those that are not NULL, as in
// ExecuteMsg.Values, in order. The joined values of several executions make one execution of a
// statement with as many times the parameters.
func AppendExecute(dst []byte, caps Caps, stmtID uint32, flags byte, nulls, types []byte, values ...[]byte) []byte {
	dst, at := begin(dst, 0)
	dst = binary.LittleEndian.AppendUint32(append(dst, ComStmtExecute), stmtID)
	dst = append(dst, flags, 1, 0, 0, 0)
	if len(types) > 0 {
		if caps.Has(CapQueryAttributes) {
			dst = AppendLenenc(dst, uint64(len(types)/2))
		}
		dst = appendTypes(append(append(dst, nulls...), 1), caps, types)
	}
	for _, v := range values {
		dst = append(dst, v...)
	}
	return end(dst, at)
}

// appendTypes adds an empty name to each type under CapQueryAttributes.
func appendTypes(dst []byte, caps Caps, types []byte) []byte {
	if !caps.Has(CapQueryAttributes) {
		return append(dst, types...)
	}
	for i := 0; i+1 < len(types); i += 2 {
		dst = append(dst, types[i], types[i+1], 0)
	}
	return dst
}

// NullsLen returns the length in bytes of a bitmap for n parameters.
func NullsLen(n int) int { return (n + 7) / 8 }

// IsNull returns bit i of a bitmap of parameters.
func IsNull(nulls []byte, i int) bool { return nulls[i/8]&(1<<(i%8)) != 0 }

// AppendNulls adds the first n bits of nulls to a bitmap of have bits, to join the bitmaps of
// several executions.
func AppendNulls(dst []byte, have int, nulls []byte, n int) []byte {
	if have%8 == 0 {
		dst = append(dst, nulls[:NullsLen(n)]...)
		if n%8 != 0 {
			dst[len(dst)-1] &= 1<<(n%8) - 1
		}
		return dst
	}
	for i := range n {
		if (have+i)%8 == 0 {
			dst = append(dst, 0)
		}
		if IsNull(nulls, i) {
			dst[len(dst)-1] |= 1 << ((have + i) % 8)
		}
	}
	return dst
}

// ParseValue parses the binary value of the given type at the start of b. value aliases b and
// includes the length that precedes some types.
func ParseValue(b []byte, typ byte) (value, rest []byte, ok bool) {
	n := 0
	switch typ {
	case TypeNull:
	case TypeTiny, TypeBool:
		n = 1
	case TypeShort, TypeYear:
		n = 2
	case TypeLong, TypeInt24, TypeFloat:
		n = 4
	case TypeLongLong, TypeDouble:
		n = 8
	case TypeDate, TypeTime, TypeDatetime, TypeTimestamp, TypeTimestamp2, TypeDatetime2, TypeTime2, TypeNewDate:
		if len(b) == 0 {
			return nil, nil, false
		}
		n = 1 + int(b[0])
	default:
		if _, rest, ok = ParseLenencString(b); !ok {
			return nil, nil, false
		}
		n = len(b) - len(rest)
	}
	if len(b) < n {
		return nil, nil, false
	}
	return b[:n:n], b[n:], true
}

// BulkMsg is a view of MariaDB's COM_STMT_BULK_EXECUTE.
type BulkMsg struct {
	StmtID uint32
	Flags  uint16 // BulkReturnGeneratedKeys, BulkSendTypes
	Types  []byte // 2 bytes for each parameter; empty without BulkSendTypes
	// Rows has, for each parameter of each row, an indicator (0 value, 1 NULL, 2 default, 3
	// ignore) and, if that is 0, the value.
	Rows []byte
}

// ParseBulk reads a COM_STMT_BULK_EXECUTE of a statement with numParams
// parameters.
func ParseBulk(payload []byte, numParams int) (BulkMsg, error) {
	if len(payload) < 7 || payload[0] != ComStmtBulkExecute || numParams > maxParams {
		return BulkMsg{}, ErrMalformed
	}
	m := BulkMsg{StmtID: binary.LittleEndian.Uint32(payload[1:]), Flags: binary.LittleEndian.Uint16(payload[5:]), Rows: payload[7:]}
	if m.Flags&BulkSendTypes != 0 {
		if len(m.Rows) < 2*numParams {
			return BulkMsg{}, ErrMalformed
		}
		m.Types, m.Rows = m.Rows[:2*numParams:2*numParams], m.Rows[2*numParams:]
	}
	return m, nil
}
