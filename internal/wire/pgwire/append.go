package pgwire

import "encoding/binary"

// The builders append one whole message to dst and return it, as append does.
// Strings travel NUL-terminated, so a string argument must not hold a NUL byte;
// names and texts that came out of a message of this protocol never do.

// begin appends a header of the given type and returns the offset of the length, which end
// fills in.
func begin(dst []byte, typ byte) ([]byte, int) {
	return append(dst, typ, 0, 0, 0, 0), len(dst) + 1
}

func end(dst []byte, at int) []byte {
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at))
	return dst
}

func header(dst []byte, typ byte, bodyLen int) []byte {
	return binary.BigEndian.AppendUint32(append(dst, typ), uint32(bodyLen+4))
}

func appendCString(dst []byte, s string) []byte {
	return append(append(dst, s...), 0)
}

// AppendMessage appends a message of any type with the given body.
func AppendMessage(dst []byte, typ byte, body []byte) []byte {
	return append(header(dst, typ, len(body)), body...)
}

// AppendQuery appends a simple-protocol Query.
func AppendQuery(dst []byte, sql string) []byte {
	return appendCString(header(dst, ClientQuery, len(sql)+1), sql)
}

// AppendParse appends a Parse that prepares sql under name ("" is the unnamed
// statement) with the given parameter types; 0 leaves a type to the server.
func AppendParse(dst []byte, name, sql string, oids []uint32) []byte {
	dst = header(dst, ClientParse, len(name)+1+len(sql)+1+2+4*len(oids))
	dst = appendCString(appendCString(dst, name), sql)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(oids)))
	for _, oid := range oids {
		dst = binary.BigEndian.AppendUint32(dst, oid)
	}
	return dst
}

// AppendParseRaw appends a Parse under another name. tail is the client's own
// message from the text on (ParseMsg.Tail), so the text and the types travel as
// the client sent them.
func AppendParseRaw(dst []byte, name string, tail []byte) []byte {
	dst = appendCString(header(dst, ClientParse, len(name)+1+len(tail)), name)
	return append(dst, tail...)
}

// AppendBind appends a Bind of stmt to portal with the given arguments. A nil
// element of args.Values is NULL; an empty args.ResultFormats asks for text.
func AppendBind(dst []byte, portal, stmt string, args *BindArgs) []byte {
	dst, at := begin(dst, ClientBind)
	dst = appendCString(appendCString(dst, portal), stmt)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(args.Formats)))
	for _, f := range args.Formats {
		dst = binary.BigEndian.AppendUint16(dst, uint16(f))
	}
	dst = appendValues(dst, args.Values)
	if len(args.ResultFormats) == 0 {
		dst = append(dst, 0, 0)
	}
	return end(append(dst, args.ResultFormats...), at)
}

// appendValues appends an int16 count and that many int32-length-prefixed
// values, as Bind and DataRow carry them; nil is NULL.
func appendValues(dst []byte, values [][]byte) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(values)))
	for _, v := range values {
		if v == nil {
			dst = append(dst, 0xff, 0xff, 0xff, 0xff)
			continue
		}
		dst = append(binary.BigEndian.AppendUint32(dst, uint32(len(v))), v...)
	}
	return dst
}

// AppendDescribe appends a Describe of a KindStatement or KindPortal.
func AppendDescribe(dst []byte, kind byte, name string) []byte {
	return appendCString(append(header(dst, ClientDescribe, len(name)+2), kind), name)
}

// AppendClose appends a Close of a KindStatement or KindPortal.
func AppendClose(dst []byte, kind byte, name string) []byte {
	return appendCString(append(header(dst, ClientClose, len(name)+2), kind), name)
}

// AppendExecute appends an Execute of portal that returns at most limit rows; 0
// means all.
func AppendExecute(dst []byte, portal string, limit uint32) []byte {
	dst = appendCString(header(dst, ClientExecute, len(portal)+5), portal)
	return binary.BigEndian.AppendUint32(dst, limit)
}

// AppendSync appends a Sync.
func AppendSync(dst []byte) []byte { return header(dst, ClientSync, 0) }

// AppendFlush appends a Flush.
func AppendFlush(dst []byte) []byte { return header(dst, ClientFlush, 0) }

// AppendTerminate appends a Terminate, the polite end of a session.
func AppendTerminate(dst []byte) []byte { return header(dst, ClientTerminate, 0) }

// AppendCopyData appends a CopyData; both ends send it.
func AppendCopyData(dst, data []byte) []byte { return AppendMessage(dst, ClientCopyData, data) }

// AppendCopyDone appends a CopyDone; both ends send it.
func AppendCopyDone(dst []byte) []byte { return header(dst, ClientCopyDone, 0) }

// AppendCopyFail appends a CopyFail with the reason that the server will put
// into its error message.
func AppendCopyFail(dst []byte, reason string) []byte {
	return appendCString(header(dst, ClientCopyFail, len(reason)+1), reason)
}

// AppendReadyForQuery appends a ReadyForQuery with StatusIdle, StatusInTx or
// StatusFailed.
func AppendReadyForQuery(dst []byte, status byte) []byte {
	return append(header(dst, ServerReady, 1), status)
}

// AppendCommandComplete appends a CommandComplete with a tag such as
// "INSERT 0 1".
func AppendCommandComplete(dst []byte, tag string) []byte {
	return appendCString(header(dst, ServerCommandComplete, len(tag)+1), tag)
}

// AppendParameterStatus appends a ParameterStatus.
func AppendParameterStatus(dst []byte, name, value string) []byte {
	dst = header(dst, ServerParameterStatus, len(name)+1+len(value)+1)
	return appendCString(appendCString(dst, name), value)
}

// AppendBackendKeyData appends a BackendKeyData. The secret is 4 bytes long in
// protocol 3.0 and 4 to 256 bytes in 3.2.
func AppendBackendKeyData(dst []byte, pid uint32, secret []byte) []byte {
	dst = header(dst, ServerBackendKeyData, 4+len(secret))
	return append(binary.BigEndian.AppendUint32(dst, pid), secret...)
}

// AppendParseComplete appends a ParseComplete.
func AppendParseComplete(dst []byte) []byte { return header(dst, ServerParseComplete, 0) }

// AppendBindComplete appends a BindComplete.
func AppendBindComplete(dst []byte) []byte { return header(dst, ServerBindComplete, 0) }

// AppendCloseComplete appends a CloseComplete.
func AppendCloseComplete(dst []byte) []byte { return header(dst, ServerCloseComplete, 0) }

// AppendNoData appends a NoData.
func AppendNoData(dst []byte) []byte { return header(dst, ServerNoData, 0) }

// AppendEmptyQuery appends an EmptyQueryResponse.
func AppendEmptyQuery(dst []byte) []byte { return header(dst, ServerEmptyQuery, 0) }

// AppendParameterDescription appends a ParameterDescription.
func AppendParameterDescription(dst []byte, oids []uint32) []byte {
	dst = header(dst, ServerParameterDescription, 2+4*len(oids))
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(oids)))
	for _, oid := range oids {
		dst = binary.BigEndian.AppendUint32(dst, oid)
	}
	return dst
}

// Field describes one column of a result.
type Field struct {
	Name     string
	TableOID uint32 // 0 when the column is not one of a table
	Column   int16  // attribute number in that table, else 0
	TypeOID  uint32
	TypeSize int16 // pg_type.typlen: negative for variable length
	TypeMod  int32 // pg_attribute.atttypmod: -1 when the type takes none
	Format   int16 // 0 text, 1 binary
}

// AppendRowDescription appends a RowDescription.
func AppendRowDescription(dst []byte, fields []Field) []byte {
	dst, at := begin(dst, ServerRowDescription)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(fields)))
	for i := range fields {
		f := &fields[i]
		dst = appendCString(dst, f.Name)
		dst = binary.BigEndian.AppendUint32(dst, f.TableOID)
		dst = binary.BigEndian.AppendUint16(dst, uint16(f.Column))
		dst = binary.BigEndian.AppendUint32(dst, f.TypeOID)
		dst = binary.BigEndian.AppendUint16(dst, uint16(f.TypeSize))
		dst = binary.BigEndian.AppendUint32(dst, uint32(f.TypeMod))
		dst = binary.BigEndian.AppendUint16(dst, uint16(f.Format))
	}
	return end(dst, at)
}

// AppendDataRow appends a DataRow; a nil value is NULL.
func AppendDataRow(dst []byte, values [][]byte) []byte {
	dst, at := begin(dst, ServerDataRow)
	return end(appendValues(dst, values), at)
}
