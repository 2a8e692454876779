package wal

import (
	"bytes"
	"testing"
)

func FuzzDecodeRecord(f *testing.F) {
	f.Add(appendRecord(nil, &Record{Kind: Entry, Term: 3, Index: 300, Data: []byte("data")}))
	f.Add(appendRecord(nil, &Record{Kind: Hard}))
	f.Add([]byte{1, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, rest, err := decodeRecord(b)
		if err != nil {
			return
		}
		if len(r.Data)+len(rest) > len(b) || cap(r.Data) != len(r.Data) {
			t.Fatalf("%d bytes of data and %d that follow, of %d", len(r.Data), len(rest), len(b))
		}
		again, none, err := decodeRecord(appendRecord(nil, &r))
		if err != nil || len(none) != 0 || again.Kind != r.Kind || again.Term != r.Term || again.Index != r.Index || !bytes.Equal(again.Data, r.Data) {
			t.Fatalf("%+v became %+v, %v", r, again, err)
		}
	})
}

func FuzzDecodeBody(f *testing.F) {
	f.Add(appendRecord(appendRecord(nil, &Record{Kind: Entry, Index: 1, Data: []byte("x")}), &Record{Kind: View, Term: 9}), uint32(2))
	f.Add([]byte{}, uint32(1<<31))
	f.Fuzz(func(t *testing.T, b []byte, count uint32) {
		records, err := decodeBody(b, count)
		if err == nil && len(records) != int(count) {
			t.Fatalf("%d records, want %d", len(records), count)
		}
	})
}

func FuzzDecodeHeader(f *testing.F) {
	f.Add((&header{number: 7, size: 1 << 20, prevEnd: 512, lastIndex: 3}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		h, sum, err := decodeHeader("x", b)
		if err != nil {
			return
		}
		// Bytes that no field names are covered by the checksum, too.
		if headerChecksum(b) != sum {
			t.Fatal("a header with a wrong checksum")
		}
		if again, _, err := decodeHeader("x", h.encode()); err != nil || again != h {
			t.Fatalf("%+v became %+v, %v", h, again, err)
		}
	})
}

func FuzzDecodeIdentity(f *testing.F) {
	f.Add([]byte(`{"format":1,"cluster":"a","replica":1,"log":"00000000000000000000000000000000","checksum":1}`))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var file identityFile
		if err := decodeSmall(identityName, b, &file); err != nil {
			return
		}
		if again, err := encodeSmall(&file); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%s became %s, %v", b, again, err)
		}
	})
}

// TestSmallFilesStay: directories of older versions are read, and read by them.
func TestSmallFilesStay(t *testing.T) {
	for line, f := range map[string]smallFile{
		`{"format":1,"acked":{"2":5,"3":70},"checksum":2423377637}`:                                                         &ackedFile{Acked: map[uint64]uint64{3: 70, 2: 5}},
		`{"format":1,"logs":{"2":"0102030000000000"},"checksum":2780563213}`:                                                &peersFile{Logs: map[uint64]LogTag{2: {1, 2, 3}}},
		`{"format":1,"cluster":"c","replica":2,"log":"00000000000000000000000000000001","first":"f","checksum":2897562757}`: &identityFile{Identity: Identity{Cluster: "c", Replica: 2, Log: LogID{15: 1}, First: "f"}},
	} {
		if b, err := encodeSmall(f); err != nil || string(b) != line+"\n" {
			t.Errorf("got %s, %v, want %s", b, err, line)
		}
		if err := decodeSmall("x", []byte(line+"\n"), f); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestOtherVersionsAreNamed(t *testing.T) {
	b := (&header{number: 1}).encode()
	b[8] = 9
	h := headerChecksum(b)
	b[12], b[13], b[14], b[15] = byte(h), byte(h>>8), byte(h>>16), byte(h>>24)
	_, _, err := decodeHeader("1.wal", b)
	if want := "1.wal has format version 9, this program reads version 1; use the version of weir that wrote it"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestTrackKnowsTerms(t *testing.T) {
	type entry struct{ index, term uint64 }
	tr := newTrack(10, 2)
	for _, e := range []entry{{11, 2}, {12, 3}, {13, 3}, {14, 5}, {15, 5}} {
		if err := tr.check(e.index, e.term); err != nil {
			t.Fatal(err)
		}
		tr.add(e.index, e.term)
	}
	check := func(index, want uint64, known bool) {
		t.Helper()
		if term, ok := tr.term(index); term != want || ok != known {
			t.Errorf("entry %d is of term %d, %v; want %d, %v", index, term, ok, want, known)
		}
	}
	check(9, 0, false)
	check(10, 2, true)
	check(11, 2, true)
	check(13, 3, true)
	check(15, 5, true)
	check(16, 0, false)
	tr.add(13, 4)
	check(12, 3, true)
	check(13, 4, true)
	check(14, 0, false)
	tr.forget(13)
	check(11, 0, false)
	check(12, 3, true)
	check(13, 4, true)
	if tr.first != 13 || tr.last != 13 || !tr.reaches(12) || tr.reaches(11) || !tr.reaches(20) {
		t.Errorf("track %+v", tr)
	}
	tr.add(9, 1) // older than all that is known, as behind a carry
	if tr.first != 9 || tr.last != 9 {
		t.Errorf("track %+v", tr)
	}
	check(9, 1, true)
}

// A slow, obvious track to compare with.
func FuzzTrack(f *testing.F) {
	f.Add([]byte{1, 1, 1, 2, 0x41, 1, 2, 0x82, 3})
	f.Fuzz(func(t *testing.T, ops []byte) {
		tr := newTrack(0, 0)
		slow := []uint64{0} // term of each entry
		first := uint64(1)
		for _, op := range ops {
			n := uint64(op & 0x3f)
			switch op >> 6 {
			case 0, 1: // append n entries of the last term or the next
				term := slow[len(slow)-1] + uint64(op>>6)
				for range n % 5 {
					tr.add(tr.last+1, term)
					slow = append(slow, term)
				}
			case 2: // replace
				index := max(first, tr.last-min(n, tr.last))
				if index == 0 || index > tr.last {
					continue
				}
				term := slow[index-1] + n%2
				tr.add(index, term)
				slow = append(slow[:index], term)
			case 3: // forget
				index := min(first+n, tr.last+1)
				tr.forget(index)
				first = max(first, index)
			}
			if tr.last != uint64(len(slow)-1) || tr.first != first {
				t.Fatalf("%d to %d, want %d to %d", tr.first, tr.last, first, len(slow)-1)
			}
			for i := first - 1; i <= tr.last; i++ {
				if term, known := tr.term(i); !known || term != slow[i] {
					t.Fatalf("entry %d is of term %d, %v; want %d", i, term, known, slow[i])
				}
			}
		}
	})
}
