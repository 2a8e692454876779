package pgload

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/ruler/bench/load"
)

// message frames a server message.
func message(kind byte, body string) string {
	b := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)+4))
	return string(b) + body
}

func TestAppendPreparedMatchesLibpq(t *testing.T) {
	op := operation{args: [2]int64{7, -12}, nargs: 2}
	got := appendPrepared(nil, &op)
	bind := "\x00weir_load\x00" + "\x00\x00" + "\x00\x02" + "\x00\x00\x00\x017" + "\x00\x00\x00\x03-12" + "\x00\x01\x00\x00"
	want := message('B', bind) + message('D', "P\x00") + message('E', "\x00\x00\x00\x00\x00") + message('S', "")
	if string(got) != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestTemplateFillsInLiterals(t *testing.T) {
	op := operation{args: [2]int64{3, -4}, nargs: 2}
	w := load.Insert{Hint: "/* batch:10 */"}
	got := appendSimple(nil, w.Statement(), &op)
	want := message('Q', "/* batch:10 */ INSERT INTO test (value, created_at) VALUES (3, -4)\x00")
	if string(got) != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestReplyInPiecesIsTheSame(t *testing.T) {
	row := "\x00\x01\x00\x00\x00\x0210"
	stream := message('2', "") + message('T', "\x00\x00") + message('D', row) + message('N', "x") + message('C', "SELECT 1\x00") + message('Z', "I")
	want := answer{tag: tagOf("SELECT 1"), value: 10, rows: 1}
	for cut := range len(stream) {
		var r reply
		buf := []byte(stream[:cut])
		n, done, err := r.consume(buf)
		if err != nil || done {
			t.Fatalf("cut at %d: done %v, %v", cut, done, err)
		}
		buf = append(buf[n:], stream[cut:]...)
		n, done, err = r.consume(buf)
		if err != nil || !done || n != len(buf) {
			t.Fatalf("cut at %d: used %d of %d, done %v, %v", cut, n, len(buf), done, err)
		}
		if r.answer != want {
			t.Fatalf("cut at %d: answer %+v", cut, r.answer)
		}
	}
}

func TestReplyReadsErrorsAndRefusesNonsense(t *testing.T) {
	var r reply
	if _, done, err := r.consume([]byte(message('E', "SERROR\x00C23514\x00Mno good\x00\x00") + message('Z', "I"))); err != nil || !done {
		t.Fatal(done, err)
	}
	if trimZero(r.answer.code[:]) != "23514" || r.detail != "no good" {
		t.Errorf("reply = %+v", r)
	}
	for name, in := range map[string]string{
		"too short":         "Z\x00\x00\x00\x03",
		"too long":          "Z\x7f\x00\x00\x03",
		"unknown":           message('9', ""),
		"row without field": message('D', "\x00"),
		"field too long":    message('D', "\x00\x01\x00\x00\x00\x09x"),
		"null":              message('D', "\x00\x01\xff\xff\xff\xff"),
		"not a number":      message('D', "\x00\x01\x00\x00\x00\x01x"),
	} {
		var r reply
		if _, _, err := r.consume([]byte(in)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzReply(f *testing.F) {
	f.Add([]byte(message('2', "")+message('D', "\x00\x01\x00\x00\x00\x0210")+message('C', "SELECT 1\x00")+message('Z', "I")), 3)
	f.Add([]byte(message('E', "C23514\x00M\x00\x00")), 1)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		var whole reply
		n, done, err := whole.consume(b)
		if n < 0 || n > len(b) {
			t.Fatalf("consumed %d of %d bytes", n, len(b))
		}
		if err != nil || cut < 0 || cut > len(b) {
			return
		}
		var pieces reply
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

func TestAnswerNamesTheDifference(t *testing.T) {
	right := selectWork{}.operation(1, 2).want
	for want, change := range map[string]func(*answer){
		"":         func(*answer) {},
		"SQLSTATE": func(a *answer) { a.code = [5]byte{'4', '0', '0', '0', '1'} },
		"tag":      func(a *answer) { a.tag = tagOf("SELECT 0") },
		"rows":     func(a *answer) { a.rows = 2 },
		"value":    func(a *answer) { a.value++ },
	} {
		got := right
		change(&got)
		if w := right.wrong(&got); !strings.Contains(w, want) || (want == "") != (w == "") {
			t.Errorf("%q: wrong() = %q", want, w)
		}
	}
}

func TestFailingOperationsViolateTheConstraint(t *testing.T) {
	w := insertWork{FailPercent: 5}
	for n := range int64(1000) {
		op := w.operation(3, n)
		if failed := op.args[1] < 0; failed != load.Insert(w).Fails(3, n) || failed != (op.want.code != [5]byte{}) {
			t.Fatalf("operation %d contradicts itself", n)
		}
	}
}
