package consensus

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"testing"
)

// manySessions has sessions in an order of use that is not that of their ids,
// with and without answers.
func manySessions() *sessions {
	t := newSessions()
	t.grant(5, 4, 100)
	s := t.get(5)
	s.next = 4
	s.answers = []answer{{seq: 1, index: 9, revision: 12, result: []byte("one")}, {seq: 3, index: 1 << 40, revision: 1 << 41, lost: true}}
	t.use(s, 0, 300)
	t.use(t.get(7), 2, 400)
	return t
}

func someHead(t testing.TB) []byte {
	t.Helper()
	c := assemble(Config{}, nil)
	c.state.applied, c.state.revision, c.state.logTime, c.state.alive, c.state.sessions, c.state.format = 30, 44, -3, 500, manySessions(), 0
	c.state.members.init([]Member{{ID: 3, Addr: "c"}, {ID: 1, Addr: "a", Client: "a-redis"}, {ID: 2, Addr: "b"}})
	c.state.members.index = 17
	c.state.members.list = append(c.state.members.list, Member{ID: 9, Addr: "learner", Learner: true})
	c.state.members.conf.Learners = []uint64{9}
	c.state.members.gone = []uint64{4, 5, 1 << 31}
	b, err := c.snapshots.appendHead(nil, 6)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// headAgain is the form of a head that was read.
func headAgain(t *testing.T, h *head) []byte {
	t.Helper()
	c := assemble(Config{}, nil)
	c.state.applied, c.state.revision, c.state.logTime, c.state.alive = h.index, h.revision, h.logTime, h.alive
	c.state.members, c.state.sessions, c.state.format = h.members, h.sessions, 0
	b, err := c.snapshots.appendHead(nil, h.term)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSnapshotHeadRoundTrip(t *testing.T) {
	b := someHead(t)
	h, err := parseHead(b)
	if err != nil {
		t.Fatal(err)
	}
	if h.index != 30 || h.term != 6 || h.revision != 44 || h.logTime != -3 || h.alive != 500 || h.members.index != 17 {
		t.Errorf("head: %+v", h)
	}
	want := "[{1 a false a-redis} {2 b false } {3 c false } {9 learner true }]"
	if got := fmt.Sprint(h.members.list); got != want {
		t.Errorf("members %s, want %s", got, want)
	}
	if got := fmt.Sprint(h.members.voters(), h.members.conf.GetLearners()); got != "[1 2 3] [9]" {
		t.Errorf("configuration %s", got)
	}
	if got := fmt.Sprint(h.members.gone); got != "[4 5 2147483648]" {
		t.Errorf("members that left: %s", got)
	}
	if got := headAgain(t, &h); !bytes.Equal(got, b) {
		t.Errorf("the head encodes as\n%q, was\n%q", got, b)
	}
	if got, want := order(h.sessions), "6@100 8@100 5@300 7@400"; got != want {
		t.Errorf("sessions in the order of their use: %s, want %s", got, want)
	}
	if a, ok := h.sessions.get(5).answer(1); !ok || string(a.result) != "one" || a.revision != 12 || a.index != 9 {
		t.Errorf("answer: %+v, %v", a, ok)
	}
	if a, ok := h.sessions.get(5).answer(3); !ok || !a.lost {
		t.Errorf("an answer that is not kept: %+v, %v", a, ok)
	}
	for n := range b {
		if _, err := parseHead(b[:n]); err == nil {
			t.Errorf("the first %d of %d bytes make a head", n, len(b))
		}
	}
	if _, err := parseHead(append(bytes.Clone(b), 0)); err == nil {
		t.Error("a head with a byte more")
	}
}

// order lists the table both ways, since the list is doubly linked.
func order(t *sessions) string {
	var forth, back []string
	for s := t.first; s != nil; s = s.after {
		forth = append(forth, fmt.Sprintf("%d@%d", s.id, s.lastUsed))
	}
	for s := t.last; s != nil; s = s.before {
		back = append([]string{fmt.Sprintf("%d@%d", s.id, s.lastUsed)}, back...)
	}
	if f, b := strings.Join(forth, " "), strings.Join(back, " "); f != b || len(forth) != len(t.byID) {
		return fmt.Sprintf("forth %s, back %s, %d in the table", f, b, len(t.byID))
	}
	return strings.Join(forth, " ")
}

func TestSnapshotFileIsHeadAndState(t *testing.T) {
	b := someHead(t)
	var file bytes.Buffer
	if n, err := (savedState{b, wordsSnapshot(`{"a":"1"}`)}).WriteTo(&file); err != nil || n != int64(file.Len()) {
		t.Fatalf("%d of %d bytes written: %v", n, file.Len(), err)
	}
	whole := file.Bytes()
	h, rest, err := readHead(&file)
	if err != nil || h.index != 30 {
		t.Fatalf("head %+v: %v", h, err)
	}
	if state, err := io.ReadAll(rest); err != nil || string(state) != `{"a":"1"}` {
		t.Errorf("state %q, %v", state, err)
	}
	for n := range len(whole) - len(`{"a":"1"}`) {
		if _, _, err := readHead(bytes.NewReader(whole[:n])); err == nil || !strings.HasPrefix(err.Error(), "head of the snapshot: ") {
			t.Errorf("the first %d bytes: %v", n, err)
		}
	}
	huge := binary.AppendUvarint(nil, maxHead+1)
	if _, _, err := readHead(bytes.NewReader(huge)); err == nil {
		t.Error("a head of more than maxHead bytes")
	}
}

func FuzzSnapshotHead(f *testing.F) {
	f.Add(someHead(f))
	f.Add([]byte{snapshotVersion, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHead(b)
		if err != nil {
			return
		}
		if got := order(h.sessions); strings.HasPrefix(got, "forth") {
			t.Errorf("%q: %s", b, got)
		}
		first := headAgain(t, &h)
		again, err := parseHead(first)
		if err != nil {
			t.Fatalf("%q is read and written as %q, which is no head: %v", b, first, err)
		}
		if second := headAgain(t, &again); !bytes.Equal(first, second) {
			t.Errorf("%q is written as %q, and then as %q", b, first, second)
		}
	})
}
