package consensus

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// logModel is what a memoryLog should hold: term and data by index, above base.
type logModel struct {
	base, baseTerm uint64
	terms          []uint64
	sizes          []int
}

func (m *logModel) last() uint64 { return m.base + uint64(len(m.terms)) }

func (m *logModel) bytes() (n int64) {
	for _, s := range m.sizes {
		n += int64(s)
	}
	return n
}

// keep is the answer of keepIndex, by trying each index.
func (m *logModel) keep(upTo uint64, keep int64) uint64 {
	best, left := m.base, m.bytes()
	for i, s := range m.sizes {
		if left -= int64(s); left >= keep && m.base+uint64(i)+1 <= upTo {
			best = m.base + uint64(i) + 1
		}
	}
	return best
}

func (m *logModel) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d/%d:", m.base, m.baseTerm)
	for i := range m.terms {
		fmt.Fprintf(&b, " %d.%d", m.terms[i], m.sizes[i])
	}
	return b.String()
}

func modelOf(l *memoryLog) string {
	m := logModel{base: l.entries[0].GetIndex(), baseTerm: l.entries[0].GetTerm()}
	for i, e := range l.entries[1:] {
		if e.GetIndex() != m.base+uint64(i)+1 {
			return fmt.Sprintf("entry %d stands at %d", e.GetIndex(), m.base+uint64(i)+1)
		}
		m.terms, m.sizes = append(m.terms, e.GetTerm()), append(m.sizes, len(e.GetData()))
	}
	return m.String()
}

func logEntries(from, term uint64, sizes []int) []*pb.Entry {
	var out []*pb.Entry
	for i, n := range sizes {
		index := from + uint64(i)
		out = append(out, &pb.Entry{Index: &index, Term: &term, Data: make([]byte, n)})
	}
	return out
}

func TestLogAgainstModel(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	l, m := newMemoryLog(5, 1), &logModel{base: 5, baseTerm: 1}
	term := uint64(1)
	for step := range 5000 {
		var held []*pb.Entry // by a reader, across what follows
		var seen string
		if m.last() > m.base {
			var err error
			if held, err = l.Entries(m.base+1, m.last()+1, 1<<62); err != nil {
				t.Fatal(err)
			}
			seen = fmt.Sprint(held)
		}
		switch r.IntN(8) {
		case 0:
			index := m.base + uint64(r.IntN(int(m.last()-m.base)+1))
			if r.IntN(4) == 0 {
				index = m.base - uint64(r.IntN(int(min(m.base, 5)))) // what is gone already
			}
			l.compact(index)
			if index > m.base {
				n := index - m.base
				m.base, m.baseTerm, m.terms, m.sizes = index, m.terms[n-1], m.terms[n:], m.sizes[n:]
			}
		case 1:
			if r.IntN(20) == 0 {
				m = &logModel{base: m.last() + uint64(r.IntN(10)), baseTerm: term}
				l.reset(m.base, m.baseTerm)
			}
		default:
			if r.IntN(3) == 0 {
				term++
			}
			from := m.last() + 1
			if r.IntN(3) == 0 { // what a new leader replaces, or, at a restart, what the snapshot holds
				from -= min(uint64(r.IntN(8)), from-1)
			}
			sizes := make([]int, r.IntN(5))
			for i := range sizes {
				sizes[i] = r.IntN(50)
			}
			wantGone := ""
			if len(sizes) > 0 {
				keep := max(from, m.base+1) - m.base - 1
				for i := keep; i < uint64(len(m.terms)); i++ {
					wantGone += fmt.Sprintf(" %d", m.base+1+i)
				}
				m.terms, m.sizes = m.terms[:keep:keep], m.sizes[:keep:keep]
				for i, n := range sizes {
					if from+uint64(i) > m.base {
						m.terms, m.sizes = append(m.terms, term), append(m.sizes, n)
					}
				}
			}
			gone := ""
			for _, e := range l.append(logEntries(from, term, sizes)) {
				gone += fmt.Sprintf(" %d", e.GetIndex())
			}
			if gone != wantGone {
				t.Fatalf("step %d: %d entries at %d replace%s, want%s", step, len(sizes), from, gone, wantGone)
			}
		}
		if got := modelOf(l); got != m.String() {
			t.Fatalf("step %d: log %s, want %s", step, got, m)
		}
		if l.bytes != m.bytes() {
			t.Fatalf("step %d: %d bytes, want %d: %s", step, l.bytes, m.bytes(), m)
		}
		if len(held) > 0 && fmt.Sprint(held) != seen {
			t.Fatalf("step %d: what a reader holds has changed", step)
		}
		for range 3 {
			upTo, keep := m.base+uint64(r.IntN(12)), int64(r.IntN(200))
			if got, want := l.keepIndex(upTo, keep), m.keep(upTo, keep); got != want {
				t.Fatalf("step %d: keepIndex(%d, %d) = %d, want %d: %s", step, upTo, keep, got, want, m)
			}
		}
		if len(m.terms) > 40 {
			l.compact(m.last() - 5)
			n := len(m.terms) - 5
			m.base, m.baseTerm, m.terms, m.sizes = m.last()-5, m.terms[n-1], m.terms[n:], m.sizes[n:]
		}
	}
}

func TestLogTerms(t *testing.T) {
	l := newMemoryLog(10, 2)
	l.append(logEntries(11, 3, []int{1, 1}))
	l.append(logEntries(13, 4, []int{1}))
	for _, c := range []struct {
		index, term uint64
		err         error
	}{{9, 0, raft.ErrCompacted}, {10, 2, nil}, {11, 3, nil}, {13, 4, nil}, {14, 0, raft.ErrUnavailable}} {
		if term, err := l.Term(c.index); term != c.term || !errors.Is(err, c.err) {
			t.Errorf("term of %d: %d, %v; want %d, %v", c.index, term, err, c.term, c.err)
		}
	}
	if l.first() != 11 || l.lastIndex() != 13 {
		t.Errorf("log from %d to %d", l.first(), l.lastIndex())
	}
}

func TestLogEntriesBySize(t *testing.T) {
	l := newMemoryLog(10, 2)
	l.append(logEntries(11, 3, []int{100, 100, 100}))
	for _, c := range []struct {
		lo, hi, size uint64
		n            int
		err          error
	}{
		{10, 12, 1e9, 0, raft.ErrCompacted},
		{11, 15, 1e9, 0, raft.ErrUnavailable},
		{11, 14, 1e9, 3, nil},
		{12, 14, 1e9, 2, nil},
		{11, 11, 1e9, 0, nil},
		{11, 14, 0, 1, nil}, // one goes always
		{11, 14, 264, 2, nil},
		{11, 14, 263, 1, nil},
	} {
		got, err := l.Entries(c.lo, c.hi, c.size)
		if len(got) != c.n || !errors.Is(err, c.err) {
			t.Errorf("entries [%d, %d) of %d bytes: %d, %v; want %d, %v", c.lo, c.hi, c.size, len(got), err, c.n, c.err)
		}
	}
}

// There is a snapshot for others only from the last change of members on.
func TestLogSnapshotSinceTheLastChange(t *testing.T) {
	l := newMemoryLog(10, 2)
	if _, err := l.Snapshot(); !errors.Is(err, raft.ErrSnapshotTemporarilyUnavailable) || !l.want {
		t.Errorf("without one: %v, wanted %v", err, l.want)
	}
	l.want = false
	l.saved, l.since = snapshotMark{12, 3, &pb.ConfState{Voters: []uint64{1}}}, 13
	if _, err := l.Snapshot(); !errors.Is(err, raft.ErrSnapshotTemporarilyUnavailable) || !l.want {
		t.Errorf("of before the change: %v, wanted %v", err, l.want)
	}
	l.want, l.since = false, 12
	s, err := l.Snapshot()
	if err != nil || l.want || s.GetMetadata().GetIndex() != 12 || s.GetMetadata().GetTerm() != 3 || len(s.GetMetadata().GetConfState().GetVoters()) != 1 {
		t.Errorf("snapshot %v, %v", s, err)
	}
}
