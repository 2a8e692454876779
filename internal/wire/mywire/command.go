package mywire

import "encoding/binary"

// AppendCommand appends a command with the given argument, which follows the command's byte.
func AppendCommand[S string | []byte](dst []byte, command byte, arg S) []byte {
	if len(arg)+1 < MaxPayload {
		return append(append(AppendHeader(dst, len(arg)+1, 0), command), arg...)
	}
	dst, at := begin(dst, 0)
	return end(append(append(dst, command), arg...), at)
}

// AppendQuery appends a COM_QUERY. Under CapQueryAttributes it announces no attributes.
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

// AppendQuit appends a COM_QUIT. It has no answer.
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
