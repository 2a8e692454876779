package pgload

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
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
	w := Insert{Hint: "/* batch:10 */"}
	got := newTemplate(w.Statement()).appendSimple(nil, &op)
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
	right := Select{}.operation(1, 2).want
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

func TestCheckerFindsEveryKindOfDamage(t *testing.T) {
	ledger := func() *Ledger {
		return &Ledger{clients: []clientLedger{{sent: 5}, {sent: 4, refused: []int64{1}, unknown: []int64{3}}}}
	}
	good := "0\t0\n0\t1\n0\t2\n0\t3\n0\t4\n1\t0\n1\t2\n"
	for name, tc := range map[string]struct {
		rows                          string
		lost, twice, called, undecied int64
	}{
		"exact":          {rows: good},
		"unknown stored": {rows: good + "1\t3\n", undecied: 1},
		"lost":           {rows: strings.Replace(good, "0\t2\n", "", 1), lost: 1},
		"twice":          {rows: good + "0\t0\n", twice: 1},
		"not sent":       {rows: good + "0\t5\n", called: 1},
		"other client":   {rows: good + "2\t0\n", called: 1},
		"negative":       {rows: good + "0\t-1\n", called: 1},
		"refused stored": {rows: good + "1\t1\n", called: 1},
		"empty":          {lost: 7},
	} {
		for _, piece := range []int{1, 3, 1000} {
			c := newChecker(Insert{}, ledger())
			for at := 0; at < len(tc.rows); at += piece {
				if _, err := fmt.Fprint(c, tc.rows[at:min(at+piece, len(tc.rows))]); err != nil {
					t.Fatal(err)
				}
			}
			a, err := c.finish()
			if err != nil {
				t.Fatal(err)
			}
			if a.Lost != tc.lost || a.Twice != tc.twice || a.Uncalled != tc.called || a.Undecided != tc.undecied {
				t.Errorf("%s in pieces of %d: %+v", name, piece, *a)
			}
			if bad := tc.lost+tc.twice+tc.called > 0; (a.Err() != nil) != bad {
				t.Errorf("%s: Err() = %v", name, a.Err())
			}
		}
	}
	c := newChecker(Insert{}, ledger())
	if _, err := c.Write([]byte("a\tb\n")); err == nil {
		t.Error("a row that is no pair of numbers was accepted")
	}
}

func TestFailPercentIsKeptAndDecidedByIdentity(t *testing.T) {
	w := Insert{FailPercent: 5}
	failing := 0
	for n := range int64(20_000) {
		op := w.operation(3, n)
		if failed := op.args[1] < 0; failed != w.fails(3, n) || failed != (op.want.code != [5]byte{}) {
			t.Fatalf("operation %d contradicts itself", n)
		} else if failed {
			failing++
		}
	}
	if failing < 850 || failing > 1150 { // 1000 expected, 31 standard deviation
		t.Errorf("%d of 20000 fail, want about 1000", failing)
	}
}
