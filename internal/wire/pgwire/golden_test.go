package pgwire

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Every builder against an independent implementation: what we build is, byte
// for byte, what pgproto3 builds for the same content.
func TestBuildersAgreeWithPgproto3(t *testing.T) {
	oids := []uint32{23, 0, 1 << 31}
	args := &BindArgs{Formats: []int16{1, 0, 0}, Values: [][]byte{{1, 2}, nil, {}}, ResultFormats: []byte{0, 2, 0, 1, 0, 0}}
	fields := []Field{
		{Name: "id", TableOID: 16384, Column: 1, TypeOID: 20, TypeSize: 8, TypeMod: -1, Format: 1},
		{Name: "", TypeOID: 25, TypeSize: -1, TypeMod: 44},
	}
	theirFields := []pgproto3.FieldDescription{
		{Name: []byte("id"), TableOID: 16384, TableAttributeNumber: 1, DataTypeOID: 20, DataTypeSize: 8, TypeModifier: -1, Format: 1},
		{Name: []byte(""), DataTypeOID: 25, DataTypeSize: -1, TypeModifier: 44},
	}
	tests := []struct {
		name   string
		ours   []byte
		theirs interface {
			Encode(dst []byte) ([]byte, error)
		}
	}{
		{"query", AppendQuery(nil, "select 1"), &pgproto3.Query{String: "select 1"}},
		{"parse", AppendParse(nil, "s1", "select $1", oids), &pgproto3.Parse{Name: "s1", Query: "select $1", ParameterOIDs: oids}},
		{"parse raw", AppendParseRaw(nil, "s1", []byte("select $1\x00\x00\x00")), &pgproto3.Parse{Name: "s1", Query: "select $1"}},
		{"bind", AppendBind(nil, "p", "s1", args), &pgproto3.Bind{
			DestinationPortal: "p", PreparedStatement: "s1", ParameterFormatCodes: []int16{1, 0, 0},
			Parameters: [][]byte{{1, 2}, nil, {}}, ResultFormatCodes: []int16{1, 0},
		}},
		{"bind without formats", AppendBind(nil, "", "", &BindArgs{}), &pgproto3.Bind{}},
		{"describe", AppendDescribe(nil, KindStatement, "s1"), &pgproto3.Describe{ObjectType: 'S', Name: "s1"}},
		{"close", AppendClose(nil, KindPortal, ""), &pgproto3.Close{ObjectType: 'P'}},
		{"execute", AppendExecute(nil, "p", 7), &pgproto3.Execute{Portal: "p", MaxRows: 7}},
		{"sync", AppendSync(nil), &pgproto3.Sync{}},
		{"flush", AppendFlush(nil), &pgproto3.Flush{}},
		{"terminate", AppendTerminate(nil), &pgproto3.Terminate{}},
		{"copy data", AppendCopyData(nil, []byte("a\tb\n")), &pgproto3.CopyData{Data: []byte("a\tb\n")}},
		{"copy done", AppendCopyDone(nil), &pgproto3.CopyDone{}},
		{"copy fail", AppendCopyFail(nil, "no more"), &pgproto3.CopyFail{Message: "no more"}},
		{"ready", AppendReadyForQuery(nil, StatusInTx), &pgproto3.ReadyForQuery{TxStatus: 'T'}},
		{"command complete", AppendCommandComplete(nil, "INSERT 0 1"), &pgproto3.CommandComplete{CommandTag: []byte("INSERT 0 1")}},
		{"parameter status", AppendParameterStatus(nil, "TimeZone", "UTC"), &pgproto3.ParameterStatus{Name: "TimeZone", Value: "UTC"}},
		{"key data", AppendBackendKeyData(nil, 42, []byte{1, 2, 3, 4}), &pgproto3.BackendKeyData{ProcessID: 42, SecretKey: []byte{1, 2, 3, 4}}},
		{"long key data", AppendBackendKeyData(nil, 42, make([]byte, 256)), &pgproto3.BackendKeyData{ProcessID: 42, SecretKey: make([]byte, 256)}},
		{"parse complete", AppendParseComplete(nil), &pgproto3.ParseComplete{}},
		{"bind complete", AppendBindComplete(nil), &pgproto3.BindComplete{}},
		{"close complete", AppendCloseComplete(nil), &pgproto3.CloseComplete{}},
		{"no data", AppendNoData(nil), &pgproto3.NoData{}},
		{"empty query", AppendEmptyQuery(nil), &pgproto3.EmptyQueryResponse{}},
		{"portal suspended", AppendPortalSuspended(nil), &pgproto3.PortalSuspended{}},
		{"parameter description", AppendParameterDescription(nil, oids), &pgproto3.ParameterDescription{ParameterOIDs: oids}},
		{"notification", AppendNotification(nil, 9, "ch", "hi"), &pgproto3.NotificationResponse{PID: 9, Channel: "ch", Payload: "hi"}},
		{"row description", AppendRowDescription(nil, fields), &pgproto3.RowDescription{Fields: theirFields}},
		{"data row", AppendDataRow(nil, [][]byte{[]byte("1"), nil, {}}), &pgproto3.DataRow{Values: [][]byte{[]byte("1"), nil, {}}}},
		{"startup", AppendStartup(nil, Version32, []Param{{"user", "app"}}), &pgproto3.StartupMessage{ProtocolVersion: Version32, Parameters: map[string]string{"user": "app"}}},
		{"cancel", AppendCancelRequest(nil, 42, []byte{1, 2, 3, 4}), &pgproto3.CancelRequest{ProcessID: 42, SecretKey: []byte{1, 2, 3, 4}}},
		{"ssl request", AppendSSLRequest(nil), &pgproto3.SSLRequest{}},
		{"auth ok", AppendAuthOK(nil), &pgproto3.AuthenticationOk{}},
		{"auth cleartext", AppendAuthCleartext(nil), &pgproto3.AuthenticationCleartextPassword{}},
		{"auth md5", AppendAuthMD5(nil, [4]byte{1, 2, 3, 4}), &pgproto3.AuthenticationMD5Password{Salt: [4]byte{1, 2, 3, 4}}},
		{"auth sasl", AppendAuthSASL(nil, mechSCRAMPlus, mechSCRAM), &pgproto3.AuthenticationSASL{AuthMechanisms: []string{mechSCRAMPlus, mechSCRAM}}},
		{"auth sasl continue", AppendAuthSASLContinue(nil, []byte("r=x")), &pgproto3.AuthenticationSASLContinue{Data: []byte("r=x")}},
		{"auth sasl final", AppendAuthSASLFinal(nil, []byte("v=x")), &pgproto3.AuthenticationSASLFinal{Data: []byte("v=x")}},
		{"password", AppendPassword(nil, "pw"), &pgproto3.PasswordMessage{Password: "pw"}},
		{"sasl initial", AppendSASLInitial(nil, mechSCRAM, []byte("n,,")), &pgproto3.SASLInitialResponse{AuthMechanism: mechSCRAM, Data: []byte("n,,")}},
		{"sasl response", AppendSASLResponse(nil, []byte("c=")), &pgproto3.SASLResponse{Data: []byte("c=")}},
		{"negotiate", AppendNegotiateVersion(nil, Version32, []string{"_pq_.x"}), &pgproto3.NegotiateProtocolVersion{NewestMinorProtocol: Version32, UnrecognizedOptions: []string{"_pq_.x"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			theirs, err := tt.theirs.Encode(nil)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(tt.ours, theirs) {
				t.Errorf("ours   %q\ntheirs %q", tt.ours, theirs)
			}
		})
	}
}

// A builder must leave what is in dst alone: the length goes into its own
// header.
func TestBuildersAppend(t *testing.T) {
	prefix := AppendSync(nil)
	msgs := [][]byte{
		AppendBind(bytes.Clone(prefix), "", "", &BindArgs{}),
		AppendError(bytes.Clone(prefix), NewError("22012", "division by zero")),
		AppendRowDescription(bytes.Clone(prefix), nil),
		AppendDataRow(bytes.Clone(prefix), nil),
		AppendAuthSASL(bytes.Clone(prefix), mechSCRAM),
		AppendNegotiateVersion(bytes.Clone(prefix), Version30, nil),
	}
	for _, buf := range msgs {
		rest, ok := bytes.CutPrefix(buf, prefix)
		if _, length, ok2 := Peek(rest); !ok || !ok2 || length != len(rest) {
			t.Errorf("%q: header says %d bytes, message has %d", buf, length, len(rest))
		}
	}
	startup := AppendStartup(bytes.Clone(prefix), Version30, nil)
	if want := append(bytes.Clone(prefix), 0, 0, 0, 9, 0, 3, 0, 0, 0); !bytes.Equal(startup, want) {
		t.Errorf("startup after a prefix: %q, want %q", startup, want)
	}
}

// encode returns the body of a message that pgproto3 built.
func encode(t *testing.T, m interface {
	Encode(dst []byte) ([]byte, error)
},
) []byte {
	t.Helper()
	msg, err := m.Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, length, ok := Peek(msg); !ok || length != len(msg) {
		t.Fatalf("Peek(%q) = %d, %v", msg, length, ok)
	}
	return msg[HeaderLen:]
}

func TestViewsReadWhatPgproto3Writes(t *testing.T) {
	parse, err := ParseParse(encode(t, &pgproto3.Parse{Name: "s1", Query: "select $1, $2", ParameterOIDs: []uint32{23, 0}}))
	if err != nil || string(parse.Name) != "s1" || string(parse.SQL) != "select $1, $2" || parse.NumOIDs() != 2 || parse.OID(0) != 23 || parse.OID(1) != 0 {
		t.Errorf("ParseParse = %+v, %v", parse, err)
	}
	if got := AppendParseRaw(nil, "other", parse.Tail); !bytes.Equal(got, AppendParse(nil, "other", "select $1, $2", []uint32{23, 0})) {
		t.Errorf("renamed Parse: %q", got)
	}

	body := encode(t, &pgproto3.Bind{
		DestinationPortal: "p", PreparedStatement: "s1", ParameterFormatCodes: []int16{1},
		Parameters: [][]byte{{1, 2}, nil, {}}, ResultFormatCodes: []int16{1, 0},
	})
	bind, err := ParseBind(body)
	if err != nil || string(bind.Portal) != "p" || string(bind.Stmt) != "s1" {
		t.Errorf("ParseBind = %+v, %v", bind, err)
	}
	var args BindArgs
	if err := bind.Decode(&args); err != nil {
		t.Errorf("Decode: %v", err)
	}
	want := BindArgs{Formats: []int16{1}, Values: [][]byte{{1, 2}, nil, {}}, ResultFormats: []byte{0, 2, 0, 1, 0, 0}}
	if diff := cmp.Diff(want, args); diff != "" {
		t.Errorf("Decode (-want +got):\n%s", diff)
	}
	if got := AppendBindNamed(nil, "p", "s1", bind.Rest); !bytes.Equal(got[HeaderLen:], body) {
		t.Errorf("Bind passed on: %q, want %q", got[HeaderLen:], body)
	}

	describe, err := ParseDescribe(encode(t, &pgproto3.Describe{ObjectType: 'S', Name: "s1"}))
	if err != nil || describe.Kind != KindStatement || string(describe.Name) != "s1" {
		t.Errorf("ParseDescribe = %+v, %v", describe, err)
	}
	execute, err := ParseExecute(encode(t, &pgproto3.Execute{Portal: "p", MaxRows: 7}))
	if err != nil || string(execute.Portal) != "p" || execute.Limit != 7 {
		t.Errorf("ParseExecute = %+v, %v", execute, err)
	}
	oids, err := ParseParameterDescription(encode(t, &pgproto3.ParameterDescription{ParameterOIDs: []uint32{1, 2}}), nil)
	if err != nil || !cmp.Equal(oids, []uint32{1, 2}) {
		t.Errorf("ParseParameterDescription = %v, %v", oids, err)
	}
	pid, channel, payload, err := ParseNotification(encode(t, &pgproto3.NotificationResponse{PID: 9, Channel: "ch", Payload: "hi"}))
	if err != nil || pid != 9 || string(channel) != "ch" || string(payload) != "hi" {
		t.Errorf("ParseNotification = %d %q %q, %v", pid, channel, payload, err)
	}
	version, unknown, err := ParseNegotiateVersion(encode(t, &pgproto3.NegotiateProtocolVersion{NewestMinorProtocol: Version30, UnrecognizedOptions: []string{"_pq_.a", "_pq_.b"}}))
	if err != nil || version != Version30 || !cmp.Equal(unknown, []string{"_pq_.a", "_pq_.b"}) {
		t.Errorf("ParseNegotiateVersion = %x %q, %v", version, unknown, err)
	}
	row, err := ParseDataRow(encode(t, &pgproto3.DataRow{Values: [][]byte{nil, {}, []byte("x")}}), nil)
	if err != nil || !cmp.Equal(row, [][]byte{nil, {}, []byte("x")}) {
		t.Errorf("ParseDataRow = %q, %v", row, err)
	}
	fields := []Field{{Name: "id", TableOID: 1, Column: 2, TypeOID: 3, TypeSize: -1, TypeMod: -5, Format: 1}}
	got, err := ParseRowDescription(encode(t, &pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{
		{Name: []byte("id"), TableOID: 1, TableAttributeNumber: 2, DataTypeOID: 3, DataTypeSize: -1, TypeModifier: -5, Format: 1},
	}}), nil)
	if err != nil || !cmp.Equal(got, fields) {
		t.Errorf("ParseRowDescription = %+v, %v", got, err)
	}
}

func TestErrorFieldsBothWays(t *testing.T) {
	ours := &Error{
		Severity: "FEHLER", SeverityRaw: "ERROR", Code: "23505", Message: "duplicate key", Detail: "Key (id)=(1) already exists.",
		Hint: "Try 2.", Position: 8, InternalPosition: 3, InternalQuery: "select 2", Where: "SQL function", Schema: "public",
		Table: "t", Column: "id", DataType: "int4", Constraint: "t_pkey", File: "nbtinsert.c", Line: 664, Routine: "_bt_check_unique",
	}
	theirs := &pgproto3.ErrorResponse{
		Severity: "FEHLER", SeverityUnlocalized: "ERROR", Code: "23505", Message: "duplicate key", Detail: "Key (id)=(1) already exists.",
		Hint: "Try 2.", Position: 8, InternalPosition: 3, InternalQuery: "select 2", Where: "SQL function", SchemaName: "public",
		TableName: "t", ColumnName: "id", DataTypeName: "int4", ConstraintName: "t_pkey", File: "nbtinsert.c", Line: 664, Routine: "_bt_check_unique",
	}
	got, err := ParseError(encode(t, theirs))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ours, got); diff != "" {
		t.Errorf("their error read by us (-want +got):\n%s", diff)
	}
	var back pgproto3.ErrorResponse
	if err := back.Decode(AppendError(nil, ours)[HeaderLen:]); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(theirs, &back); diff != "" {
		t.Errorf("our error read by them (-want +got):\n%s", diff)
	}
	notice := AppendNotice(nil, ours)
	if notice[0] != ServerNotice || !bytes.Equal(notice[1:], AppendError(nil, ours)[1:]) {
		t.Errorf("a notice is not an error with another type: %q", notice)
	}
}

// AppendPortalSuspended appends a PortalSuspended.
func AppendPortalSuspended(dst []byte) []byte { return header(dst, ServerPortalSuspended, 0) }

// ParseParameterDescription appends the parameter types of a
// ParameterDescription message to dst.
func ParseParameterDescription(body []byte, dst []uint32) ([]uint32, error) {
	if len(body) < 2 || len(body) != 2+4*int(binary.BigEndian.Uint16(body)) {
		return dst, ErrMalformed
	}
	for body = body[2:]; len(body) > 0; body = body[4:] {
		dst = append(dst, binary.BigEndian.Uint32(body))
	}
	return dst, nil
}

// NumOIDs returns how many parameter types the message declares.
func (m ParseMsg) NumOIDs() int { return len(m.OIDs) / 4 }
