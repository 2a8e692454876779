package wal_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/replica/wal"
)

var me = wal.Identity{Cluster: "test", Replica: 1}

// small options make small files.
func small() wal.Options { return wal.Options{SegmentBytes: 4096} }

func open(t testing.TB, dir string) (*wal.Log, *wal.Recovered) {
	t.Helper()
	l, r, err := wal.Open(dir, me, small())
	if err != nil {
		t.Fatal(err)
	}
	return l, r
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// show renders what was recovered, one record a line.
func show(t testing.TB, r *wal.Recovered) []string {
	t.Helper()
	var lines []string
	for rec, err := range r.Records() {
		must(t, err)
		lines = append(lines, fmt.Sprintf("%s %d %d %s", rec.Kind, rec.Term, rec.Index, rec.Data))
	}
	return lines
}

func same(t testing.TB, got, want []string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("recovered (-want +got):\n%s", diff)
	}
}

func entry(term, index uint64) wal.Record {
	return wal.Record{Kind: wal.Entry, Term: term, Index: index, Data: fmt.Appendf(nil, "e%d.%d", term, index)}
}

func hard(s string) wal.Record { return wal.Record{Kind: wal.Hard, Data: []byte(s)} }

func TestWhatIsFlushedComesBack(t *testing.T) {
	dir := t.TempDir()
	l, r := open(t, dir)
	if !r.Created {
		t.Error("a new log does not say so")
	}
	must(t, l.Append(hard("t1"), entry(1, 1), entry(1, 2)))
	must(t, l.Sync())
	must(t, l.Append(entry(1, 3), entry(2, 3), hard("t2")))
	must(t, l.Close())
	l, r = open(t, dir)
	if r.Created || !r.Clean || r.Torn != nil || r.Last != 3 || r.LastTerm != 2 {
		t.Errorf("recovered %+v", r)
	}
	same(t, show(t, r), []string{"hard 0 0 t1", "entry 1 1 e1.1", "entry 1 2 e1.2", "entry 2 3 e2.3", "hard 0 0 t2"})
	must(t, l.Close())
}
