package consensus

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
)

func TestSessionsByUse(t *testing.T) {
	table := newSessions()
	table.grant(10, 3, 5)
	check := func(want string) {
		t.Helper()
		if got := order(table); got != want {
			t.Errorf("sessions %q, want %q", got, want)
		}
	}
	check("10@5 11@5 12@5")
	table.use(table.get(10), 0, 7)
	table.use(table.get(10), 0, 8) // it is the last already
	table.use(table.get(11), 0, 9)
	check("12@5 10@8 11@9")
	var gone []uint64
	note := func(id uint64) { gone = append(gone, id) }
	table.expire(5, note)
	if len(gone) > 0 {
		t.Errorf("expired at the moment of their last use: %v", gone)
	}
	table.expire(9, note)
	check("11@9")
	table.expire(100, note)
	table.expire(100, note)
	if fmt.Sprint(gone) != "[12 10 11]" {
		t.Errorf("expired: %v", gone)
	}
	table.grant(20, 1, 200)
	check("20@200")
}

func TestSessionsKeepAnswersUntilAcknowledged(t *testing.T) {
	table := newSessions()
	table.grant(1, 1, 0)
	s := table.get(1)
	for seq := uint64(1); seq <= 6; seq += 1 + seq%2 { // 1, 3, 5
		s.answers = append(s.answers, answer{seq: seq, result: fmt.Append(nil, seq)})
	}
	for _, c := range []struct {
		ack  uint64
		want string
	}{{0, "1 3 5"}, {1, "3 5"}, {2, "3 5"}, {1, "3 5"}, {4, "5"}, {9, ""}, {9, ""}} {
		table.use(s, c.ack, 1)
		var kept []string
		for seq := range uint64(9) {
			if a, ok := s.answer(seq); ok {
				kept = append(kept, string(a.result))
			}
		}
		if got := strings.Join(kept, " "); got != c.want {
			t.Errorf("after ack %d: answers %q, want %q", c.ack, got, c.want)
		}
	}
	if s.acked != 9 {
		t.Errorf("acked %d", s.acked)
	}
}

// The table against a slice that is sorted by last use.
func TestSessionsAgainstASlice(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	table := newSessions()
	type plain struct {
		id   uint64
		used int64
	}
	var model []plain
	next, now := uint64(1), int64(0)
	for step := range 3000 {
		now += int64(r.IntN(3))
		switch r.IntN(8) {
		case 0:
			n := uint64(r.IntN(3))
			table.grant(next, n, now)
			for range n {
				model = append(model, plain{next, now})
				next++
			}
		case 1:
			before := now - int64(r.IntN(40))
			var gone, want []uint64
			table.expire(before, func(id uint64) { gone = append(gone, id) })
			model = slices.DeleteFunc(model, func(p plain) bool {
				if p.used < before {
					want = append(want, p.id)
				}
				return p.used < before
			})
			if !slices.Equal(gone, want) {
				t.Fatalf("step %d: expired %v, want %v", step, gone, want)
			}
		default:
			if len(model) == 0 {
				continue
			}
			i := r.IntN(len(model))
			id := model[i].id
			table.use(table.get(id), 0, now)
			model = append(slices.Delete(model, i, i+1), plain{id, now})
		}
		var want []string
		for _, p := range model {
			want = append(want, fmt.Sprintf("%d@%d", p.id, p.used))
		}
		if got := order(table); got != strings.Join(want, " ") {
			t.Fatalf("step %d: sessions %s, want %v", step, got, want)
		}
	}
}

func TestSessionsRefuseDoubles(t *testing.T) {
	table := newSessions()
	table.grant(3, 1, 0)
	one := table.append(nil)
	twice := append([]byte{2}, append(slices.Clone(one[1:]), one[1:]...)...)
	if _, err := readSessions(&reader{b: twice}); err == nil || !strings.Contains(err.Error(), "session 3 is listed twice") {
		t.Errorf("a session twice: %v", err)
	}
}

// The answers kept of a session are bounded in bytes, whatever its client does, and each write
// is executed once all the same.
func TestAnswersAreBoundedInBytes(t *testing.T) {
	r := newRig(t, 3, "raft")
	lead := r.leader()
	s := r.session(lead)
	big := "set a " + strings.Repeat("x", 1<<20) // each "add" answers a little more than that
	write := func(seq, ack uint64, command string) {
		r.deliver(lead, wire.Message{Kind: wire.Strong, Session: s, Seq: seq, Ack: ack, Data: []byte(command)})
	}
	write(1, 0, big)
	seq := uint64(2)
	for ; len(r.take(wire.Refused)) == 0; seq++ {
		if seq > 100 {
			t.Fatal("a client that acknowledges nothing goes on for ever")
		}
		write(seq, 1, "add a y")
		r.settle()
	}
	if refused := seq - 1; refused != 2+8 { // the eighth of them is over the bound
		t.Errorf("write %d is refused, want the 10th", refused)
	}
	seq--
	// A client need not have told the log which answers it has: a write that says so is
	// accepted.
	write(seq, seq-1, "add a y")
	r.settle()
	if got := r.take(wire.Refused); len(got) > 0 {
		t.Fatalf("a client that has all answers is refused: %s", got[0].Data)
	}
	// Under way at once, they are all taken in, and some answers are not kept.
	first := seq + 1
	for n := range uint64(80) {
		write(first+n, seq, "add a y")
	}
	r.settle()
	applied := len(r.nodes[lead].words.log)
	if want := int(first) + 79; applied != want {
		t.Fatalf("%d writes are applied, want %d", applied, want)
	}
	if got := r.take(wire.Done); len(got[len(got)-1].Data) < 1<<20 {
		t.Errorf("the first answer to the last write: %v", got[len(got)-1])
	}
	kept, lost := 0, 0
	for n := range uint64(80) {
		write(first+n, seq, "add a y")
		r.settle()
		kept += len(r.take(wire.Done))
		for _, m := range r.take(wire.Refused) {
			if m.Code != wire.CodeUnkept {
				t.Errorf("refused with code %d: %s", m.Code, m.Data)
			}
			lost++
		}
	}
	if kept != 63 || lost != 17 {
		t.Errorf("%d answers are kept and %d are not, want 63 and 17", kept, lost)
	}
	for _, id := range r.order {
		c := r.nodes[id].core
		if b := c.state.sessions.get(s).bytes; b > mostKept+80*64 {
			t.Errorf("replica %d keeps %d bytes", id, b)
		}
		if n := len(r.nodes[id].words.log); n != applied {
			t.Errorf("replica %d has applied %d writes, want %d", id, n, applied)
		}
	}
	write(first+80, first+79, "set a small")
	r.settle()
	if b := r.nodes[lead].core.state.sessions.get(s).bytes; b != len("ok")+64 {
		t.Errorf("%d bytes are kept of one small answer", b)
	}
}
