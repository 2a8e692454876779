package mywire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// payloadOf returns the payload of the one packet in b.
func payloadOf(t *testing.T, b []byte) []byte {
	t.Helper()
	payload, _, err := Payload(b)
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

// cutShort checks that parse refuses every proper prefix of payload.
func cutShort(t *testing.T, payload []byte, parse func([]byte) error) {
	t.Helper()
	for n := range payload {
		if err := parse(payload[:n]); !errors.Is(err, ErrMalformed) {
			t.Errorf("first %d of %d bytes: %v", n, len(payload), err)
		}
	}
}

func TestLenenc(t *testing.T) {
	for _, n := range []uint64{0, 250, 251, 252, 255, 256, 65535, 65536, 1<<24 - 1, 1 << 24, math.MaxUint64} {
		b := AppendLenenc(nil, n)
		got, rest, ok := ParseLenenc(append(b, 'x'))
		if !ok || got != n || string(rest) != "x" {
			t.Errorf("%d: %d, %q, %t", n, got, rest, ok)
		}
		for cut := range b {
			if _, _, ok := ParseLenenc(b[:cut]); ok {
				t.Errorf("%d: read from %d of %d bytes", n, cut, len(b))
			}
		}
	}
	for _, b := range []string{"\xfb", "\xff", "\xff12345678"} {
		if _, _, ok := ParseLenenc([]byte(b)); ok {
			t.Errorf("%q is no integer", b)
		}
	}
}

func TestOKKeepsWhatItHolds(t *testing.T) {
	state := AppendChange(nil, Change{Kind: TrackSystemVariables, Name: []byte("autocommit"), Value: []byte("OFF")})
	state = AppendChange(state, Change{Kind: TrackSchema, Value: []byte("db")})
	state = AppendChange(state, Change{Kind: TrackStateChange, Value: []byte("1")})
	state = AppendChange(state, Change{Kind: TrackGTIDs, Value: []byte("0-1-2")})
	state = AppendChange(state, Change{Kind: 77, Value: []byte("unheard of")})
	for _, ok := range []OK{
		{},
		{AffectedRows: 1 << 40, LastInsertID: math.MaxUint64, Status: StatusAutocommit, Warnings: 65535},
		{Info: []byte("Rows matched: 1")},
		{Status: StatusSessionState, State: state},
		{Status: StatusSessionState | StatusInTrans, Info: []byte("both"), State: state},
	} {
		for _, caps := range []Caps{0, CapSessionTrack, CapDeprecateEOF, CapSessionTrack | CapDeprecateEOF} {
			want := ok
			if !caps.Has(CapSessionTrack) {
				want.State, want.Status = nil, ok.Status&^StatusSessionState
			}
			got, err := ParseOK(payloadOf(t, AppendOK(nil, 1, caps, &ok)), caps)
			if diff := cmp.Diff(want, got, emptyIsNil); diff != "" || err != nil {
				t.Errorf("caps %#x: %v\n%s", caps, err, diff)
			}
			end := payloadOf(t, AppendEnd(nil, 1, caps, &ok))
			if !IsEnd(end, caps) || IsOK(end) {
				t.Errorf("caps %#x: %x does not end rows", caps, end)
			}
			if caps.Has(CapDeprecateEOF) {
				got, err = ParseOK(end, caps)
				if diff := cmp.Diff(want, got, emptyIsNil); diff != "" || err != nil {
					t.Errorf("caps %#x, end: %v\n%s", caps, err, diff)
				}
			}
		}
	}
	var kinds []byte
	for rest := state; len(rest) > 0; {
		c, tail, err := ParseChange(rest)
		if err != nil {
			t.Fatal(err)
		}
		kinds, rest = append(kinds, c.Kind), tail
	}
	if !bytes.Equal(kinds, []byte{0, 1, 2, 3, 77}) {
		t.Errorf("%v", kinds)
	}
}

var emptyIsNil = cmp.Transformer("text", func(b []byte) string { return string(b) })

func TestOKOfOldServers(t *testing.T) {
	// Without a length before the text, as the documentation has it.
	ok, err := ParseOK([]byte("\x00\x01\x02\x02\x00\x00\x00Hello"), 0)
	if err != nil || string(ok.Info) != "Hello" {
		t.Errorf("%+v, %v", ok, err)
	}
}

func TestErrorKeepsWhatItHolds(t *testing.T) {
	e := NewError(ErrDeadlock, "Deadlock found when trying to get lock; %s", "try again")
	if e.Error() != "ERROR 1213 (40001): Deadlock found when trying to get lock; try again" {
		t.Error(e)
	}
	payload := payloadOf(t, AppendError(nil, 1, e))
	got, err := ParseError(payload)
	if diff := cmp.Diff(e, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	if ErrorCode(payload) != ErrDeadlock || CodeOf(fmt.Errorf("x: %w", e)) != ErrDeadlock {
		t.Error("the number is lost")
	}
	if got, err := ParseError([]byte("\xff\x10\x04Too many connections")); err != nil || got.State != "" || got.Message != "Too many connections" {
		t.Errorf("before the greeting: %+v, %v", got, err)
	}
	if payload := AppendError(nil, 1, &Error{Code: 1, Message: strings.Repeat("x", 1000)}); len(payload) > 600 {
		t.Errorf("%d bytes", len(payload))
	}
}

func TestGreetingKeepsWhatItHolds(t *testing.T) {
	for _, caps := range []Caps{
		CapsRequired | CapPluginAuth | CapLongPassword,
		CapsRequired | CapPluginAuth | CapProgress | CapBulkOperations | CapSSL,
	} {
		g := &Greeting{Version: "10.11", ConnectionID: 1 << 31, Salt: newSalt(), Caps: caps, Charset: 8, Status: StatusAutocommit, Plugin: PluginSHA2}
		payload := payloadOf(t, AppendGreeting(nil, g))
		got, err := ParseGreeting(payload)
		if diff := cmp.Diff(g, got); diff != "" || err != nil {
			t.Error(err, diff)
		}
		if g.IsMariaDB() != caps.Has(CapProgress) {
			t.Error("another family")
		}
		cutShort(t, payload[:len(payload)-len(PluginSHA2)-1], func(b []byte) error { _, err := ParseGreeting(b); return err })
	}
	if _, err := ParseGreeting(payloadOf(t, AppendError(nil, 0, NewError(ErrHostBlocked, "blocked")))); CodeOf(err) != ErrHostBlocked {
		t.Error(err)
	}
}

func TestResponseKeepsWhatItHolds(t *testing.T) {
	full := Response{
		MaxPacket: 1 << 30, Charset: 45, User: "ann", Auth: bytes.Repeat([]byte{7}, 32), Database: "db",
		Plugin: PluginSHA2, Attrs: []Attr{{"program_name", "x"}, {"_os", strings.Repeat("y", 300)}}, ZstdLevel: 3,
	}
	for _, caps := range []Caps{
		CapsRequired,
		CapsRequired | CapConnectWithDB | CapPluginAuth,
		CapsRequired | CapConnectWithDB | CapPluginAuth | CapConnectAttrs | CapPluginAuthLenenc | CapZstd | CapBulkOperations,
		CapsRequired | CapPluginAuth | CapConnectAttrs | CapLongPassword,
	} {
		want := full
		want.Caps = caps
		if !caps.Has(CapConnectWithDB) {
			want.Database = ""
		}
		if !caps.Has(CapPluginAuth) {
			want.Plugin = PluginNative
		}
		if !caps.Has(CapConnectAttrs) {
			want.Attrs = nil
		}
		if !caps.Has(CapZstd) {
			want.ZstdLevel = 0
		}
		given := full
		given.Caps = caps
		got, err := ParseResponse(payloadOf(t, AppendResponse(nil, 1, &given)))
		if diff := cmp.Diff(&want, got); diff != "" || err != nil {
			t.Errorf("%#x: %v %s", caps, err, diff)
		}
		ssl := payloadOf(t, AppendSSLRequest(nil, 1, &given))
		if !IsSSLRequest(ssl) || IsSSLRequest(payloadOf(t, AppendResponse(nil, 1, &given))) {
			t.Errorf("%#x: a request for TLS is not told from a response", caps)
		}
	}
}

func TestChangeUserKeepsWhatItHolds(t *testing.T) {
	c := &ChangeUser{User: "ann", Auth: []byte("proof"), Database: "db", Charset: 255, Plugin: PluginSHA2, Attrs: []Attr{{"a", "b"}}}
	caps := CapPluginAuth | CapConnectAttrs
	got, err := ParseChangeUser(payloadOf(t, AppendChangeUser(nil, caps, c)), caps)
	if diff := cmp.Diff(c, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
}

func TestAuthSwitchOfAnOldServer(t *testing.T) {
	if plugin, _, err := ParseAuthSwitch([]byte{0xfe}); plugin != PluginOld || err != nil {
		t.Errorf("%q, %v", plugin, err)
	}
	salt := newSalt()
	plugin, data, err := ParseAuthSwitch(payloadOf(t, AppendAuthSwitch(nil, 2, PluginNative, salt)))
	if err != nil || plugin != PluginNative || !bytes.Equal(data, salt) {
		t.Errorf("%q, %x, %v", plugin, data, err)
	}
}

// MariaDB's ed25519 and parsec ask with 32 bytes and no terminator: a NUL at the
// end is part of the challenge.
func TestAuthSwitchWhoseChallengeEndsInNUL(t *testing.T) {
	salt := append(bytes.Repeat([]byte{1}, 31), 0)
	plugin, data, err := ParseAuthSwitch(append([]byte("\xfe"+PluginEd25519+"\x00"), salt...))
	if err != nil || plugin != PluginEd25519 || !bytes.Equal(data, salt) {
		t.Errorf("%q, %x, %v", plugin, data, err)
	}
}

func TestColumnAndRowKeepWhatTheyHold(t *testing.T) {
	c := Column{
		Schema: []byte("s"), Table: []byte("t"), OrgTable: []byte("o"), Name: []byte("n"), OrgName: []byte("m"), Extended: []byte("\x00\x04json"),
		Charset: 63, Length: 1 << 31, Type: TypeBlob, Flags: 1<<15 | 1, Decimals: 31,
	}
	payload := payloadOf(t, AppendColumn(nil, 1, CapExtendedMetadata, &c))
	got, err := ParseColumn(payload, CapExtendedMetadata)
	if diff := cmp.Diff(c, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	values := [][]byte{[]byte("a"), nil, {}, bytes.Repeat([]byte("b"), 300)}
	row := payloadOf(t, AppendTextRow(nil, 1, values))
	back, err := ParseTextRow(row, len(values), nil)
	if diff := cmp.Diff(values, back); diff != "" || err != nil {
		t.Error(err, diff)
	}
	for _, n := range []int{3, 5} {
		if _, err := ParseTextRow(row, n, nil); !errors.Is(err, ErrMalformed) {
			t.Errorf("%d values: %v", n, err)
		}
	}
}

func TestQueryWithAttributes(t *testing.T) {
	body := []byte{ComQuery, 2, 1, 0b10, 1, TypeTiny, 0, 1, 'a', TypeString, 0, 1, 'b', 5}
	m, err := ParseQuery(append(body, "SELECT 1"...), CapQueryAttributes)
	if err != nil || string(m.SQL) != "SELECT 1" || m.NumAttributes != 2 || len(m.Attributes) != len(body)-1 {
		t.Errorf("%+v, %v", m, err)
	}
	m, err = ParseQuery(payloadOf(t, AppendQuery(nil, CapQueryAttributes, "SELECT 2")), CapQueryAttributes)
	if err != nil || string(m.SQL) != "SELECT 2" || m.NumAttributes != 0 {
		t.Errorf("%+v, %v", m, err)
	}
	cutShort(t, body, func(b []byte) error { _, err := ParseQuery(b, CapQueryAttributes); return err })
}

func TestExecuteKeepsWhatItHolds(t *testing.T) {
	types := []byte{TypeLong, 0, TypeVarString, 0, TypeDatetime, 0, TypeDouble, 0x80, TypeNull, 0}
	values := binary.LittleEndian.AppendUint32(nil, 5)
	values = AppendLenencString(values, "text")
	values = append(append(values, 4), 0xe8, 7, 1, 2)
	nulls := []byte{0b01000}
	for _, caps := range []Caps{0, CapQueryAttributes} {
		packet := AppendExecute(nil, caps, 9, CursorReadOnly, nulls, types, values)
		SetStmtID(packet, 10)
		m, err := ParseExecute(payloadOf(t, packet), 5, caps)
		if err != nil {
			t.Fatal(err)
		}
		if id, err := ParseStmtID(payloadOf(t, packet)); id != 10 || err != nil {
			t.Errorf("%d, %v", id, err)
		}
		if m.StmtID != 10 || !m.Cursor() || !m.NewTypes || !bytes.Equal(m.Nulls, nulls) || !bytes.Equal(m.Values, values) {
			t.Errorf("%+v", m)
		}
		if got := m.AppendTypes(nil); !bytes.Equal(got, types) {
			t.Errorf("types %x", got)
		}
		if err := m.CheckValues(types, nil); err != nil {
			t.Error(err)
		}
		// The text was sent as long data.
		m.Values = append(bytes.Clone(values[:4]), values[9:]...)
		if err := m.CheckValues(types, []byte{0b10}); err != nil {
			t.Error(err)
		}
		if err := m.CheckValues(types, nil); !errors.Is(err, ErrMalformed) {
			t.Errorf("a value is missing: %v", err)
		}
	}
	if _, err := ParseExecute(payloadOf(t, AppendExecute(nil, 0, 1, 0, nil, nil)), 0, 0); err != nil {
		t.Error(err)
	}
}

func TestAppendNullsJoinsBitmaps(t *testing.T) {
	for n := 1; n < 20; n++ {
		var joined []byte
		var want []bool
		for k := range 5 {
			bits := make([]byte, NullsLen(n))
			for i := range n {
				if (i*7+k*3)%4 == 0 {
					bits[i/8] |= 1 << (i % 8)
				}
				want = append(want, (i*7+k*3)%4 == 0)
			}
			bits[len(bits)-1] |= 0xff << ((n-1)%8 + 1) // what is behind the last says nothing
			joined = AppendNulls(joined, k*n, bits, n)
		}
		if len(joined) != NullsLen(len(want)) {
			t.Fatalf("%d bytes for %d bits", len(joined), len(want))
		}
		for i, null := range want {
			if IsNull(joined, i) != null {
				t.Errorf("%d parameters, bit %d: %t", n, i, !null)
			}
		}
	}
}

func TestOtherCommandsKeepWhatTheyHold(t *testing.T) {
	if o, err := ParseSetOption(payloadOf(t, AppendSetOption(nil, 1))); o != 1 || err != nil {
		t.Error(o, err)
	}
	if id, err := ParseProcessKill(payloadOf(t, AppendProcessKill(nil, 7))); id != 7 || err != nil {
		t.Error(id, err)
	}
}

func FuzzParsers(f *testing.F) {
	ok := OK{AffectedRows: 1, Info: []byte("i"), Status: StatusSessionState, State: AppendChange(nil, Change{Kind: TrackSchema, Value: []byte("s")})}
	for _, b := range [][]byte{
		AppendOK(nil, 1, CapSessionTrack, &ok), AppendEOF(nil, 1, 2, 3), AppendError(nil, 1, NewError(1, "x")),
		AppendGreeting(nil, &Greeting{Salt: newSalt(), Caps: CapsRequired | CapPluginAuth, Plugin: "p"}),
		AppendResponse(nil, 1, &Response{Caps: CapsRequired | capsLogin, User: "u", Attrs: []Attr{{"a", "b"}}}),
		AppendChangeUser(nil, capsLogin, &ChangeUser{User: "u", Attrs: []Attr{{"a", "b"}}}),
		AppendAuthSwitch(nil, 2, "p", newSalt()),
		AppendColumn(nil, 1, CapExtendedMetadata, &Column{Name: []byte("n")}),
		AppendTextRow(nil, 1, [][]byte{nil, []byte("x")}), AppendPrepared(nil, 1, Prepared{StmtID: 1}),
		AppendExecute(nil, CapQueryAttributes, 1, ExecuteParamCountSent, []byte{0}, []byte{TypeLong, 0, TypeBlob, 0}, []byte("1234\x01x")),
		AppendQuery(nil, CapQueryAttributes, "SELECT 1"), AppendLongData(nil, LongDataMsg{}), AppendFetch(nil, 1, 1),
		AppendCommand(nil, ComStmtBulkExecute, "1234\x80\x00\x01\x00\x00\x05"),
	} {
		f.Add(b[HeaderLen:], uint64(CapSessionTrack|CapDeprecateEOF|CapQueryAttributes|CapExtendedMetadata), uint16(2))
		f.Add(b[HeaderLen:], uint64(0), uint16(1))
	}
	f.Fuzz(func(t *testing.T, b []byte, c uint64, n uint16) {
		caps := Caps(c)
		if ok, err := ParseOK(b, caps); err == nil {
			for rest := ok.State; len(rest) > 0 && err == nil; {
				_, rest, err = ParseChange(rest)
			}
			ok.Status &^= StatusSessionState // follows from State
			again, err := ParseOK(AppendOK(nil, 1, caps, &ok)[HeaderLen:], caps)
			if again.Status &^= StatusSessionState; err != nil || (len(b) < MaxPayload && cmp.Diff(ok, again, emptyIsNil) != "") {
				t.Fatalf("%v: %+v became %+v", err, ok, again)
			}
		}
		if e, err := ParseError(b); err == nil && len(e.Message) <= maxErrorMessage && e.State != "" {
			if again, err := ParseError(AppendError(nil, 1, e)[HeaderLen:]); err != nil || *again != *e {
				t.Fatalf("%v: %+v became %+v", err, e, again)
			}
		}
		if m, err := ParseExecute(b, int(n), caps); err == nil {
			types := m.AppendTypes(nil)
			if m.NewTypes && len(types) != 2*m.NumParams {
				t.Fatalf("%d types of %d parameters", len(types)/2, m.NumParams)
			}
			_ = m.CheckValues(types, nil)
		}
		if r, err := ParseResponse(b); err == nil {
			if again, err := ParseResponse(AppendResponse(nil, 1, r)[HeaderLen:]); err != nil && len(r.Auth) < 256 {
				t.Fatalf("%v: %+v became %+v", err, r, again)
			}
		}
		_, _ = ParseGreeting(b)
		_, _ = ParseChangeUser(b, caps)
		_, _, _ = ParseAuthSwitch(b)
		_, _ = ParseColumn(b, caps)
		_, _ = ParseTextRow(b, int(n), nil)
		_, _ = ParsePrepared(b)
		_, _ = ParseStmtID(b)
		_, _ = ParseQuery(b, caps)
		_, _ = ParseBulk(b, int(n))
		_, _, _ = ParseEOF(b)
	})
}

// TestOKInADatabaseOfWideCharacters: MariaDB puts NULs before the length of the session
// state where the current database's character set has no characters of one byte.
func TestOKInADatabaseOfWideCharacters(t *testing.T) {
	for _, nuls := range []int{1, 3} {
		for _, n := range []int{1, 240, 300, 70000} {
			want := AppendChange(nil, Change{Kind: TrackSystemVariables, Name: []byte("time_zone"), Value: []byte(strings.Repeat("x", n))})
			want = AppendChange(want, Change{Kind: TrackSchema, Value: []byte("d")})
			for _, info := range []string{"", "in"} {
				payload := append([]byte{headerOK, 1, 2, byte(StatusAutocommit), byte(StatusSessionState >> 8), 3, 0}, AppendLenencString(nil, info)...)
				payload = AppendLenencString(append(payload, make([]byte, nuls)...), want)
				ok, err := ParseOK(payload, CapsRequired|CapSessionTrack)
				if err != nil || !bytes.Equal(ok.State, want) || string(ok.Info) != info || ok.LastInsertID != 2 {
					t.Errorf("%d NULs, %d bytes: %d bytes of state, info %q, %v", nuls, len(want), len(ok.State), ok.Info, err)
				}
			}
		}
	}
}

// go-sql-driver loses a NUL at the end of a challenge, of which one in 256 would have one.
func TestEd25519SaltsDoNotEndWithNUL(t *testing.T) {
	for range 5000 {
		if salt := newEd25519Salt(); len(salt) != ed25519SaltLen || salt[ed25519SaltLen-1] == 0 {
			t.Fatalf("a challenge of %d bytes: % x", len(salt), salt)
		}
	}
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

// AppendTypes appends the types of the message without the names of parameters
// that CapQueryAttributes puts between them: 2 bytes each.
func (m ExecuteMsg) AppendTypes(dst []byte) []byte {
	if len(m.Types) == 2*m.NumParams {
		return append(dst, m.Types...)
	}
	for rest := m.Types; len(rest) > 2; {
		dst = append(dst, rest[:2]...)
		if _, tail, ok := ParseLenencString(rest[2:]); ok {
			rest = tail
		} else {
			return dst // ParseExecute has looked at them
		}
	}
	return dst
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
