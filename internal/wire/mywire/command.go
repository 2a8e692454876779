package mywire

import "encoding/binary"

// AppendCommand appends a command with the given argument: what follows the
// command's byte.
func AppendCommand[S string | []byte](dst []byte, command byte, arg S) []byte {
	if len(arg)+1 < MaxPayload {
		return append(append(AppendHeader(dst, len(arg)+1, 0), command), arg...)
	}
	dst, at := begin(dst, 0)
	return end(append(append(dst, command), arg...), at)
}

// AppendQuery appends a COM_QUERY. Under CapQueryAttributes it says that there
// are none.
func AppendQuery[S string | []byte](dst []byte, caps Caps, sql S) []byte {
	if !caps.Has(CapQueryAttributes) {
		return AppendCommand(dst, ComQuery, sql)
	}
	dst, at := begin(dst, 0)
	return end(append(append(dst, ComQuery, 0, 1), sql...), at)
}

// AppendInitDB appends a COM_INIT_DB.
func AppendInitDB(dst []byte, database string) []byte { return AppendCommand(dst, ComInitDB, database) }

// AppendPing appends a COM_PING.
func AppendPing(dst []byte) []byte { return AppendCommand(dst, ComPing, "") }

// AppendQuit appends a COM_QUIT, the polite end of a session. It has no answer.
func AppendQuit(dst []byte) []byte { return AppendCommand(dst, ComQuit, "") }

// AppendResetConnection appends a COM_RESET_CONNECTION.
func AppendResetConnection(dst []byte) []byte { return AppendCommand(dst, ComResetConnection, "") }

// AppendPrepare appends a COM_STMT_PREPARE.
func AppendPrepare[S string | []byte](dst []byte, sql S) []byte {
	return AppendCommand(dst, ComStmtPrepare, sql)
}

// AppendProcessKill appends a COM_PROCESS_KILL, which MySQL has dropped in 8.4;
// a KILL statement works everywhere.
func AppendProcessKill(dst []byte, connectionID uint32) []byte {
	dst = append(AppendHeader(dst, 5, 0), ComProcessKill)
	return binary.LittleEndian.AppendUint32(dst, connectionID)
}

// AppendSetOption appends a COM_SET_OPTION.
func AppendSetOption(dst []byte, option uint16) []byte {
	dst = append(AppendHeader(dst, 3, 0), ComSetOption)
	return binary.LittleEndian.AppendUint16(dst, option)
}

// ParseSetOption reads a COM_SET_OPTION.
func ParseSetOption(payload []byte) (option uint16, err error) {
	if len(payload) != 3 || payload[0] != ComSetOption {
		return 0, ErrMalformed
	}
	return binary.LittleEndian.Uint16(payload[1:]), nil
}

// ParseProcessKill reads a COM_PROCESS_KILL.
func ParseProcessKill(payload []byte) (connectionID uint32, err error) {
	if len(payload) != 5 || payload[0] != ComProcessKill {
		return 0, ErrMalformed
	}
	return binary.LittleEndian.Uint32(payload[1:]), nil
}

// ParseFieldList reads a COM_FIELD_LIST: the columns of table whose names match
// wildcard.
func ParseFieldList(payload []byte) (table, wildcard []byte, err error) {
	if len(payload) == 0 || payload[0] != ComFieldList {
		return nil, nil, ErrMalformed
	}
	table, wildcard, ok := cstring(payload[1:])
	if !ok {
		return nil, nil, ErrMalformed
	}
	return table, wildcard, nil
}

// QueryMsg is a view of a COM_QUERY.
type QueryMsg struct {
	SQL []byte
	// Attributes is what stands between the command byte and the text under
	// CapQueryAttributes, counts included; empty without. NumAttributes says
	// how many there are.
	Attributes    []byte
	NumAttributes int
}

// ParseQuery reads a COM_QUERY.
func ParseQuery(payload []byte, caps Caps) (QueryMsg, error) {
	if len(payload) == 0 || payload[0] != ComQuery {
		return QueryMsg{}, ErrMalformed
	}
	rest := payload[1:]
	if !caps.Has(CapQueryAttributes) {
		return QueryMsg{SQL: rest}, nil
	}
	count, tail, ok := ParseLenenc(rest)
	if !ok || count > maxParams {
		return QueryMsg{}, ErrMalformed
	}
	sets, tail, ok := ParseLenenc(tail)
	if !ok || sets != 1 {
		return QueryMsg{}, ErrMalformed
	}
	if count > 0 {
		if tail, ok = skipAttributes(tail, int(count)); !ok {
			return QueryMsg{}, ErrMalformed
		}
	}
	return QueryMsg{SQL: tail, Attributes: rest[:len(rest)-len(tail)], NumAttributes: int(count)}, nil
}

// skipAttributes returns what follows the n attributes at the start of b.
func skipAttributes(b []byte, n int) (rest []byte, ok bool) {
	nulls := NullsLen(n)
	if len(b) < nulls+1 || b[nulls] != 1 {
		return nil, false
	}
	nullMap, types := b[:nulls], b[nulls+1:]
	rest = types
	for range n {
		if len(rest) < 2 {
			return nil, false
		}
		if _, rest, ok = ParseLenencString(rest[2:]); !ok {
			return nil, false
		}
	}
	for i := range n {
		typ := types[0]
		if _, types, ok = ParseLenencString(types[2:]); !ok {
			return nil, false
		}
		if IsNull(nullMap, i) {
			continue
		}
		if _, rest, ok = ParseValue(rest, typ); !ok {
			return nil, false
		}
	}
	return rest, true
}
