package pgwire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPeek(t *testing.T) {
	tests := []struct {
		in     string
		typ    byte
		length int
		ok     bool
	}{
		{"", 0, 0, false},
		{"S\x00\x00\x00", 0, 0, false},
		{"S\x00\x00\x00\x04", 'S', 5, true},
		{"Q\x00\x01\x00\x00rest", 'Q', 65537, true},
		{"Q\x7f\xff\xff\xff", 'Q', 1 << 31, true},
		{"Q\xff\xff\xff\xff", 'Q', 0, true}, // negative: malformed, by length < HeaderLen
		{"Q\x80\x00\x00\x00", 'Q', -1<<31 + 1, true},
	}
	for _, tt := range tests {
		typ, length, ok := Peek([]byte(tt.in))
		if typ != tt.typ || length != tt.length || ok != tt.ok {
			t.Errorf("Peek(%q) = %q %d %v, want %q %d %v", tt.in, typ, length, ok, tt.typ, tt.length, tt.ok)
		}
	}
}

// decoders lists every decoder of a body, with a body that it accepts.
var decoders = []struct {
	name   string
	body   []byte
	decode func([]byte) error
	// exact: every other length of this body is malformed.
	exact bool
}{
	{"parse", AppendParse(nil, "s", "select $1", []uint32{23})[HeaderLen:], func(b []byte) error { _, err := ParseParse(b); return err }, true},
	{"bind", AppendBind(nil, "p", "s", testArgs)[HeaderLen:], decodeBind, true},
	{"describe", AppendDescribe(nil, 'S', "s")[HeaderLen:], func(b []byte) error { _, err := ParseDescribe(b); return err }, true},
	{"execute", AppendExecute(nil, "p", 1)[HeaderLen:], func(b []byte) error { _, err := ParseExecute(b); return err }, true},
	{"query", AppendQuery(nil, "select 1")[HeaderLen:], func(b []byte) error { _, err := ParseQuery(b); return err }, true},
	{"command complete", AppendCommandComplete(nil, "SELECT 1")[HeaderLen:], func(b []byte) error { _, err := ParseCommandComplete(b); return err }, true},
	{"ready", []byte{'I'}, func(b []byte) error { _, err := ParseReadyForQuery(b); return err }, true},
	{"parameter status", AppendParameterStatus(nil, "a", "b")[HeaderLen:], func(b []byte) error { _, _, err := ParseParameterStatus(b); return err }, true},
	{"key data", AppendBackendKeyData(nil, 1, []byte("1234"))[HeaderLen:], func(b []byte) error { _, _, err := ParseBackendKeyData(b); return err }, false},
	{"notification", AppendNotification(nil, 1, "c", "p")[HeaderLen:], func(b []byte) error { _, _, _, err := ParseNotification(b); return err }, true},
	{"parameter description", AppendParameterDescription(nil, []uint32{1})[HeaderLen:], func(b []byte) error { _, err := ParseParameterDescription(b, nil); return err }, true},
	{"row description", AppendRowDescription(nil, []Field{{Name: "a"}, {Name: "b"}})[HeaderLen:], func(b []byte) error { _, err := ParseRowDescription(b, nil); return err }, true},
	{"data row", AppendDataRow(nil, [][]byte{{1}, nil, {}})[HeaderLen:], func(b []byte) error { _, err := ParseDataRow(b, nil); return err }, true},
	{"error", AppendError(nil, NewError("22012", "division by zero"))[HeaderLen:], func(b []byte) error { _, err := ParseError(b); return err }, true},
	{"negotiate version", AppendNegotiateVersion(nil, Version30, []string{"_pq_.a"})[HeaderLen:], func(b []byte) error { _, _, err := ParseNegotiateVersion(b); return err }, true},
	{"sasl initial", AppendSASLInitial(nil, mechSCRAM, []byte("n,,"))[HeaderLen:], func(b []byte) error { _, _, err := parseSASLInitial(b); return err }, true},
	{"auth", AppendAuthMD5(nil, [4]byte{})[HeaderLen:], func(b []byte) error { _, _, err := parseAuth(b); return err }, true},
	{"mechanisms", []byte("SCRAM-SHA-256\x00\x00"), func(b []byte) error { _, err := parseMechanisms(b); return err }, true},
	{"startup", AppendStartup(nil, Version30, []Param{{"user", "u"}})[4:], func(b []byte) error { _, _, err := ParseStartup(b); return err }, true},
	{"cancel", AppendCancelRequest(nil, 1, []byte("1234"))[4:], func(b []byte) error { _, _, err := ParseStartup(b); return err }, false},
}

var testArgs = &BindArgs{Formats: []int16{1, 0}, Values: [][]byte{{1}, nil}, ResultFormats: []byte{0, 1, 0, 1}}

func decodeBind(b []byte) error {
	m, err := ParseBind(b)
	if err != nil {
		return err
	}
	return m.Decode(&BindArgs{})
}

func TestDecodersRefuseEveryTruncation(t *testing.T) {
	for _, d := range decoders {
		t.Run(d.name, func(t *testing.T) {
			if err := d.decode(d.body); err != nil {
				t.Fatalf("whole body: %v", err)
			}
			for n := range d.body {
				if err := d.decode(d.body[:n:n]); !errors.Is(err, ErrMalformed) {
					t.Errorf("first %d of %d bytes: %v, want ErrMalformed", n, len(d.body), err)
				}
			}
			if d.exact {
				if err := d.decode(append(bytes.Clone(d.body), 0)); !errors.Is(err, ErrMalformed) {
					t.Errorf("one byte too many: %v, want ErrMalformed", err)
				}
			}
		})
	}
}

func FuzzDecoders(f *testing.F) {
	for i, d := range decoders {
		f.Add(i, d.body)
	}
	f.Fuzz(func(t *testing.T, which int, body []byte) {
		if which < 0 {
			which = -(which + 1)
		}
		d := decoders[which%len(decoders)]
		// Capacity ends with the length, so a read past the end panics.
		err := d.decode(slices.Clip(bytes.Clone(body)))
		var e *Error
		if err != nil && !errors.Is(err, ErrMalformed) && !errors.As(err, &e) {
			t.Errorf("%s: %v", d.name, err)
		}
	})
}

// Bind can be encoded again as it was decoded; and the two ways of reading the parameters must
// agree.
func FuzzBindRoundTrip(f *testing.F) {
	f.Add(AppendBind(nil, "p", "s", testArgs)[HeaderLen:])
	f.Add(AppendBind(nil, "", "", &BindArgs{Formats: []int16{1}, Values: [][]byte{nil, {}}})[HeaderLen:])
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := ParseBind(body)
		if err != nil {
			return
		}
		var args BindArgs
		decodeErr := m.Decode(&args)
		var values [][]byte
		var formats []int16
		paramsErr := m.Params(func(i int, format int16, value []byte) bool {
			if i != len(values) {
				t.Errorf("parameter %d comes as number %d", len(values), i)
			}
			values, formats = append(values, value), append(formats, format)
			return true
		})
		if decodeErr != nil {
			return
		}
		if paramsErr != nil {
			t.Fatalf("Params: %v, Decode: nil", paramsErr)
		}
		if len(values) != len(args.Values) {
			t.Fatalf("Params: %d values, Decode: %d", len(values), len(args.Values))
		}
		for i := range values {
			if !bytes.Equal(values[i], args.Values[i]) || (values[i] == nil) != (args.Values[i] == nil) || formats[i] != args.Format(i) {
				t.Errorf("parameter %d: Params %d %q, Decode %d %q", i, formats[i], values[i], args.Format(i), args.Values[i])
			}
		}
		if again := AppendBind(nil, string(m.Portal), string(m.Stmt), &args)[HeaderLen:]; !bytes.Equal(again, body) {
			t.Errorf("built again: %q, was %q", again, body)
		}
	})
}

func FuzzErrorRoundTrip(f *testing.F) {
	f.Add(AppendError(nil, &Error{Severity: "ERROR", Code: "23505", Message: "m", Position: 3, Line: 7})[HeaderLen:])
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := ParseError(body)
		if err != nil {
			return
		}
		again, err := ParseError(AppendError(nil, e)[HeaderLen:])
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(e, again); diff != "" {
			t.Errorf("(-first +again):\n%s", diff)
		}
	})
}

func TestBindFormatRule(t *testing.T) {
	value := []byte("v")
	tests := []struct {
		formats []int16
		values  [][]byte
		want    []int16
		err     error
	}{
		{nil, [][]byte{value, value}, []int16{0, 0}, nil},
		{[]int16{1}, [][]byte{value, value}, []int16{1, 1}, nil},
		{[]int16{1}, nil, nil, nil},
		{[]int16{1, 0}, [][]byte{value, value}, []int16{1, 0}, nil},
		{[]int16{1, 0}, [][]byte{value}, nil, ErrMalformed},
		{[]int16{1, 0}, [][]byte{value, value, value}, nil, ErrMalformed},
	}
	for _, tt := range tests {
		m, err := ParseBind(AppendBind(nil, "", "", &BindArgs{Formats: tt.formats, Values: tt.values})[HeaderLen:])
		if err != nil {
			t.Fatal(err)
		}
		var args BindArgs
		if err := m.Decode(&args); !errors.Is(err, tt.err) {
			t.Errorf("%v for %d values: Decode: %v, want %v", tt.formats, len(tt.values), err, tt.err)
			continue
		}
		var got []int16
		err = m.Params(func(i int, format int16, _ []byte) bool {
			got = append(got, format)
			return true
		})
		if !errors.Is(err, tt.err) || (tt.err == nil && !cmp.Equal(got, tt.want)) {
			t.Errorf("%v for %d values: Params: %v, %v, want %v, %v", tt.formats, len(tt.values), got, err, tt.want, tt.err)
		}
	}
}

func TestBindTakes65535Parameters(t *testing.T) {
	values := make([][]byte, 65535)
	values[65534] = []byte("last")
	m, err := ParseBind(AppendBind(nil, "", "", &BindArgs{Values: values})[HeaderLen:])
	if err != nil {
		t.Fatal(err)
	}
	var args BindArgs
	if err := m.Decode(&args); err != nil || len(args.Values) != 65535 || string(args.Values[65534]) != "last" {
		t.Errorf("Decode: %d values, %v", len(args.Values), err)
	}
}

func TestRowsAffected(t *testing.T) {
	tests := []struct {
		tag string
		n   uint64
		ok  bool
	}{
		{"INSERT 0 5", 5, true},
		{"UPDATE 0", 0, true},
		{"SELECT 1234567890123456789", 1234567890123456789, true},
		{"SELECT 99999999999999999999", 0, false},
		{"BEGIN", 0, false},
		{"CREATE TABLE", 0, false},
		{"5", 0, false},
		{"X5", 0, false},
		{"UPDATE ", 0, false},
		{"", 0, false},
	}
	for _, tt := range tests {
		if n, ok := RowsAffected([]byte(tt.tag)); n != tt.n || ok != tt.ok {
			t.Errorf("RowsAffected(%q) = %d %v, want %d %v", tt.tag, n, ok, tt.n, tt.ok)
		}
	}
}

// An error text may quote a client's bytes; a NUL in it must not start a new
// field.
func TestErrorTextCannotForgeFields(t *testing.T) {
	e, err := ParseError(AppendError(nil, NewFatal("28000", "no user %s", "x\x00C00000\x00"))[HeaderLen:])
	if err != nil || e.Code != "28000" || e.Message != "no user x" {
		t.Errorf("got %+v, %v", e, err)
	}
}

func TestErrorText(t *testing.T) {
	e := NewError(CodeDuplicateStatement, "prepared statement %q already exists", "a")
	e.Detail, e.Hint = "It does.", "Use another name."
	if got, want := e.Error(), `ERROR: prepared statement "a" already exists; It does.; hint: Use another name. (SQLSTATE 42P05)`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if e.Fatal() || !NewFatal("57P01", "x").Fatal() || !(&Error{Severity: "PANIC"}).Fatal() || (&Error{Severity: "FATAL", SeverityRaw: "ERROR"}).Fatal() {
		t.Error("Fatal goes by the untranslated severity, else the other")
	}
	if got := CodeOf(fmt.Errorf("step: %w", e)); got != "42P05" {
		t.Errorf("CodeOf = %q", got)
	}
	if got := CodeOf(errors.New("x")); got != "" {
		t.Errorf("CodeOf of a stranger = %q", got)
	}
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	parse := AppendParse(nil, "s", "select $1", []uint32{23})
	bind := AppendBind(nil, "p", "s", testArgs)
	var args BindArgs
	buf := make([]byte, 0, 1024)
	allocs := testing.AllocsPerRun(100, func() {
		_, _, _ = Peek(parse)
		p, _ := ParseParse(parse[HeaderLen:])
		b, _ := ParseBind(bind[HeaderLen:])
		_ = b.Decode(&args)
		_ = b.Params(func(int, int16, []byte) bool { return true })
		_, _ = ParseExecute(parse[HeaderLen:])
		buf = AppendParseRaw(buf[:0], "weir1", p.Tail)
		buf = AppendBindNamed(buf, "", "weir1", b.Rest)
		buf = AppendSync(AppendExecute(buf, "", 0))
	})
	if allocs != 0 {
		t.Errorf("%v allocations per run, want none", allocs)
	}
}

func BenchmarkPeekUnit(b *testing.B) {
	// The unit that a client of the extended protocol sends.
	unit := AppendSync(AppendExecute(AppendDescribe(AppendBind(nil, "", "s", testArgs), 'P', ""), "", 0))
	b.ReportAllocs()
	b.SetBytes(int64(len(unit)))
	for b.Loop() {
		for rest := unit; len(rest) > 0; {
			_, length, ok := Peek(rest)
			if !ok {
				b.Fatal("short")
			}
			rest = rest[length:]
		}
	}
}

func BenchmarkBindDecode(b *testing.B) {
	for _, n := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("params=%d", n), func(b *testing.B) {
			values := make([][]byte, n)
			for i := range values {
				values[i] = []byte("12345678")
			}
			body := AppendBind(nil, "", "s", &BindArgs{Formats: []int16{1}, Values: values})[HeaderLen:]
			var args BindArgs
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				m, err := ParseBind(body)
				if err == nil {
					err = m.Decode(&args)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkBindRename(b *testing.B) {
	body := AppendBind(nil, "", "s", testArgs)[HeaderLen:]
	buf := make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		m, err := ParseBind(body)
		if err != nil {
			b.Fatal(err)
		}
		buf = AppendBindNamed(buf[:0], "", "weir_0123456789abcdef", m.Rest)
	}
}

// AppendNotification appends a NotificationResponse, what LISTEN receives.
func AppendNotification(dst []byte, pid uint32, channel, payload string) []byte {
	dst = header(dst, ServerNotification, 4+len(channel)+1+len(payload)+1)
	dst = binary.BigEndian.AppendUint32(dst, pid)
	return appendCString(appendCString(dst, channel), payload)
}

// AppendBindNamed appends a Bind of stmt to portal. rest is a client's own
// message from the parameter formats on (BindMsg.Rest).
func AppendBindNamed(dst []byte, portal, stmt string, rest []byte) []byte {
	dst = header(dst, ClientBind, len(portal)+1+len(stmt)+1+len(rest))
	dst = appendCString(appendCString(dst, portal), stmt)
	return append(dst, rest...)
}

// ParseBind reads the names of a Bind message. Rest is not checked.
func ParseBind(body []byte) (BindMsg, error) {
	portal, rest, ok := cstring(body)
	if !ok {
		return BindMsg{}, ErrMalformed
	}
	stmt, rest, ok := cstring(rest)
	if !ok {
		return BindMsg{}, ErrMalformed
	}
	return BindMsg{Portal: portal, Stmt: stmt, Rest: rest}, nil
}
