package myload

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/ruler/bench/load"
)

// packet frames a payload.
func packet(seq byte, payload string) string {
	return string([]byte{byte(len(payload)), byte(len(payload) >> 8), byte(len(payload) >> 16), seq}) + payload
}

// column defines one column; only the type matters here.
func column(seq, typ byte) string {
	return packet(seq, "\x03def\x01d\x01t\x01t\x05value\x05value\x0c?\x00\x0b\x00\x00\x00"+string([]byte{typ})+"\x00\x00\x00\x00\x00")
}

const (
	okOne    = "\x00\x01\x07\x02\x00\x00\x00"         // one row, id 7, autocommit, no warnings
	endOK    = "\xfe\x00\x00\x02\x00\x00\x00"         // of rows, instead of an EOF
	endEOF   = "\xfe\x00\x00\x02\x00"                 // warnings, then status
	notFound = "\xff\x7a\x04#42S02No such table"      // 1146
	eofTrans = "\xfe\x00\x00\x03\x00"                 // in a transaction
	noted    = "\x00\x01\x07\x02\x00\x00\x00Records:" // with a note
)

func TestAppendExecuteIsWhatDriversSend(t *testing.T) {
	op := operation{args: [2]int64{7, -2}, nargs: 2}
	got := string(appendExecute([]byte("x"), 0x0102, &op))
	want := "x" + packet(0, "\x17\x02\x01\x00\x00"+"\x00\x01\x00\x00\x00"+"\x00\x01"+"\x08\x00\x08\x00"+
		"\x07\x00\x00\x00\x00\x00\x00\x00"+"\xfe\xff\xff\xff\xff\xff\xff\xff")
	if got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	op = operation{args: [2]int64{9}, nargs: 1}
	got = string(appendExecute(nil, 1, &op))
	want = packet(0, "\x17\x01\x00\x00\x00"+"\x00\x01\x00\x00\x00"+"\x00\x01"+"\x08\x00"+"\x09\x00\x00\x00\x00\x00\x00\x00")
	if got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestAppendTextFillsInLiterals(t *testing.T) {
	op := operation{args: [2]int64{3, -4}, nargs: 2}
	got := string(appendText([]byte("x"), load.Insert{Hint: "/* batch:10 */"}.Statement(), &op))
	if want := "x" + packet(0, "\x03/* batch:10 */ INSERT INTO test (value, created_at) VALUES (3, -4)"); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestReplyInPiecesIsTheSame(t *testing.T) {
	row := answer{rows: 1, value: -10, status: 2}
	for name, tc := range map[string]struct {
		as     reply
		stream string
		want   answer
		detail string
	}{
		"ok":              {stream: packet(1, okOne), want: answer{affected: 1, insertID: 7, status: 2}},
		"large numbers":   {stream: packet(1, "\x00\xfc\x01\x02\xfe\x01\x00\x00\x00\x00\x00\x00\x80\x02\x00\x05\x00"), want: answer{affected: 0x201, insertID: 1<<63 + 1, status: 2, warnings: 5}},
		"note":            {stream: packet(1, noted), want: answer{affected: 1, insertID: 7, status: 2}, detail: "Records:"},
		"error":           {stream: packet(1, notFound), want: answer{code: 1146}, detail: "No such table"},
		"text row":        {stream: packet(1, "\x01") + column(2, 3) + packet(3, "\x03-10") + packet(4, endOK), want: row},
		"text row, EOF":   {as: reply{keepsEOF: true}, stream: packet(1, "\x01") + column(2, 3) + packet(3, endEOF) + packet(4, "\x03-10") + packet(5, endEOF), want: row},
		"binary row":      {as: reply{binary: true}, stream: packet(1, "\x01") + column(2, 3) + packet(3, "\x00\x00\xf6\xff\xff\xff") + packet(4, endOK), want: row},
		"binary row, EOF": {as: reply{binary: true, keepsEOF: true}, stream: packet(1, "\x01") + column(2, 3) + packet(3, endEOF) + packet(4, "\x00\x00\xf6\xff\xff\xff") + packet(5, eofTrans), want: answer{rows: 1, value: -10, status: 3}},
		"error in rows":   {stream: packet(1, "\x01") + column(2, 3) + packet(3, notFound), want: answer{code: 1146}, detail: "No such table"},
		"two rows":        {stream: packet(1, "\x01") + column(2, 3) + packet(3, "\x011") + packet(4, "\x012") + packet(5, endOK), want: answer{rows: 2, value: 1, status: 2}},
		"no row":          {stream: packet(1, "\x01") + column(2, 3) + packet(3, endOK), want: answer{status: 2}},
	} {
		for cut := range len(tc.stream) {
			r := tc.as
			r.reset()
			buf := []byte(tc.stream[:cut])
			n, done, err := r.consume(buf)
			if err != nil || done {
				t.Fatalf("%s cut at %d: done %v, %v", name, cut, done, err)
			}
			buf = append(buf[n:], tc.stream[cut:]+"more"...)
			n, done, err = r.consume(buf)
			if err != nil || !done || n != len(buf)-4 {
				t.Fatalf("%s cut at %d: used %d of %d, done %v, %v", name, cut, n, len(buf), done, err)
			}
			if r.answer != tc.want || r.detail != tc.detail {
				t.Fatalf("%s cut at %d: answer %+v, %q; want %+v", name, cut, r.answer, r.detail, tc.want)
			}
		}
	}
}

func TestReplyRefusesNonsense(t *testing.T) {
	head := packet(1, "\x01") + column(2, 3)
	for name, tc := range map[string]struct {
		as     reply
		stream string
	}{
		"number 0":           {stream: packet(0, okOne)},
		"number 2":           {stream: packet(2, okOne)},
		"same number twice":  {stream: packet(1, "\x01") + column(1, 3)},
		"empty":              {stream: packet(1, "")},
		"too long":           {stream: "\x01\x00\x7f\x01"},
		"OK cut":             {stream: packet(1, "\x00\x01")},
		"OK cut in a number": {stream: packet(1, "\x00\xfe\x01\x01\x02\x00")},
		"OK without status":  {stream: packet(1, "\x00\x01\x01\x02\x00")},
		"error cut":          {stream: packet(1, "\xff\x01")},
		"error unmarked":     {stream: packet(1, "\xff\x01\x00x12345text")},
		"error of no code":   {stream: packet(1, "\xff\x00\x00#12345text")},
		"two columns":        {stream: packet(1, "\x02")},
		"file wanted":        {stream: packet(1, "\xfb/etc/passwd")},
		"column cut":         {stream: packet(1, "\x01") + packet(2, "\x03def")},
		"BIGINT column":      {stream: packet(1, "\x01") + column(2, 8)},
		"no end of columns":  {as: reply{keepsEOF: true}, stream: head + packet(3, "\x011")},
		"NULL":               {stream: head + packet(3, "\xfb")},
		"text overlong":      {stream: head + packet(3, "\x051")},
		"text short":         {stream: head + packet(3, "\x0112")},
		"no number":          {stream: head + packet(3, "\x01x")},
		"binary NULL":        {as: reply{binary: true}, stream: head + packet(3, "\x00\x04")},
		"binary short":       {as: reply{binary: true}, stream: head + packet(3, "\x00\x00\x01\x02")},
	} {
		r := tc.as
		r.reset()
		if n, done, err := r.consume([]byte(tc.stream)); err == nil {
			t.Errorf("%s: accepted, %d bytes, done %v: %+v", name, n, done, r.answer)
		}
	}
}

func FuzzReply(f *testing.F) {
	f.Add([]byte(packet(1, okOne)), 3, false, false)
	f.Add([]byte(packet(1, "\x01")+column(2, 3)+packet(3, "\x03-10")+packet(4, endOK)), 9, false, false)
	f.Add([]byte(packet(1, "\x01")+column(2, 3)+packet(3, endEOF)+packet(4, "\x00\x00\xf6\xff\xff\xff")+packet(5, endEOF)), 40, true, true)
	f.Add([]byte(packet(1, notFound)), 1, false, true)
	f.Fuzz(func(t *testing.T, b []byte, cut int, binaryRows, keepsEOF bool) {
		whole := reply{binary: binaryRows, keepsEOF: keepsEOF}
		whole.reset()
		pieces := whole
		n, done, err := whole.consume(b)
		if n < 0 || n > len(b) {
			t.Fatalf("consumed %d of %d bytes", n, len(b))
		}
		if err != nil || cut < 0 || cut > len(b) {
			return
		}
		m, early, err := pieces.consume(b[:cut])
		if err != nil {
			t.Fatalf("a prefix fails though the whole does not: %v", err)
		}
		if !early {
			more, late, err := pieces.consume(b[m:])
			if err != nil || late != done || m+more != n {
				t.Fatalf("in pieces %d bytes, done %v, %v; whole %d, %v", m+more, late, err, n, done)
			}
		}
		if pieces != whole {
			t.Fatalf("in pieces %+v, whole %+v", pieces, whole)
		}
	})
}

func TestAnswersAreToldFromTheRightOne(t *testing.T) {
	insert := insertWork{}.operation(3, 4)
	lookup := selectWork{}.operation(3, 4)
	failing := insertWork{FailPercent: 100}.operation(3, 4)
	written := answer{affected: 1, insertID: 99, status: 2}
	for name, tc := range map[string]struct {
		op     operation
		got    answer
		detail string
		want   string // part of what is wrong; "" for nothing
	}{
		"insert":               {op: insert, got: written},
		"insert, other flags":  {op: insert, got: answer{affected: 1, insertID: 99, status: 2 | 0x20}},
		"error":                {op: insert, got: answer{code: 1213}, detail: "Deadlock", want: "error 1213 instead of 0"},
		"two rows affected":    {op: insert, got: answer{affected: 2, insertID: 99, status: 2}, want: "2 rows affected"},
		"no id":                {op: insert, got: answer{affected: 1, status: 2}, want: "insert id 0"},
		"warning":              {op: insert, got: answer{affected: 1, insertID: 99, status: 2, warnings: 1}, want: "1 warnings"},
		"in a transaction":     {op: insert, got: answer{affected: 1, insertID: 99, status: 3}, want: "status 0x3"},
		"no autocommit":        {op: insert, got: answer{affected: 1, insertID: 99}, want: "status 0x0"},
		"more results":         {op: insert, got: answer{affected: 1, insertID: 99, status: 0xa}, want: "status 0xa"},
		"a group's note":       {op: insert, got: written, detail: "Records: 2  Duplicates: 0  Warnings: 0", want: "note"},
		"lookup":               {op: lookup, got: answer{rows: 1, value: lookup.want.value, status: 2}},
		"another's value":      {op: lookup, got: answer{rows: 1, value: lookup.want.value + 7, status: 2}, want: "value"},
		"no row":               {op: lookup, got: answer{status: 2}, want: "0 rows"},
		"an id for a lookup":   {op: lookup, got: answer{rows: 1, value: lookup.want.value, insertID: 5, status: 2}, want: "insert id 5"},
		"duplicate":            {op: failing, got: answer{code: 1062}, detail: failing.duplicate() + " for key 'guard'"},
		"another's duplicate":  {op: failing, got: answer{code: 1062}, detail: "Duplicate entry '-1--1' for key 'guard'", want: "error without"},
		"no error":             {op: failing, got: written, want: "error 0 instead of 1062"},
		"another kind of fail": {op: failing, got: answer{code: 1213}, detail: "Deadlock", want: "error 1213 instead of 1062"},
	} {
		got := tc.op.wrong(&tc.got, tc.detail)
		if !strings.Contains(got, tc.want) || (tc.want == "") != (got == "") {
			t.Errorf("%s: wrong() = %q, want %q", name, got, tc.want)
		}
	}
}

func TestSetupFillsEveryKey(t *testing.T) {
	keys := 0
	for _, sql := range (selectWork{Keys: 2*fillRows + 5}).setup() {
		if strings.HasPrefix(sql, "INSERT") {
			keys += strings.Count(sql, "(")
		}
	}
	if keys != 2*fillRows+5 {
		t.Errorf("%d keys", keys)
	}
	if got, want := string(appendPair(appendPair(nil, 0, 1, 10), 1, 2, -17)), "(1,10),(2,-17)"; got != want {
		t.Errorf("tuples %q, want %q", got, want)
	}
}

func TestLenencReadsEachLength(t *testing.T) {
	for in, want := range map[string]uint64{"\xfa": 250, "\xfc\x01\x02": 0x201, "\xfd\x01\x02\x03": 0x30201, "\xfe\x01\x00\x00\x00\x00\x00\x00\x10": 0x10<<56 + 1} {
		if n, rest, ok := lenenc([]byte(in + "!")); !ok || n != want || string(rest) != "!" {
			t.Errorf("%q: %d, %q, %v; want %d", in, n, rest, ok, want)
		}
	}
	for _, in := range []string{"", "\xfb", "\xff", "\xfc\x01", "\xfe" + string(binary.LittleEndian.AppendUint32(nil, 1))} {
		if _, _, ok := lenenc([]byte(in)); ok {
			t.Errorf("%q: accepted", in)
		}
	}
}
