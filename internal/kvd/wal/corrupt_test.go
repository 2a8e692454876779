package wal_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wal"
	"github.com/weirdb/weir/internal/kvd/wal/waltest"
)

const (
	seg1, seg2, seg3 = "00000000000000000001.wal", "00000000000000000002.wal", "00000000000000000003.wal"
	snap2, snap4     = "snapshot-00000000000000000002-00000000000000000001", "snapshot-00000000000000000004-00000000000000000001"
)

func openOn(disk wal.Disk) (*wal.Log, *wal.Recovered, error) {
	return wal.Open("", me, wal.Options{SegmentBytes: 1024, Disk: disk, Rand: noise{rand.New(rand.NewPCG(7, 7))}})
}

// sample returns a disk with a log of three segments and a snapshot. The last two rounds are
// entries 7 and 8, both in the last segment. The log was not closed.
func sample(t testing.TB) *waltest.Disk {
	t.Helper()
	disk := waltest.NewDisk()
	l, _, err := openOn(disk)
	must(t, err)
	for i := uint64(1); i <= 8; i++ {
		must(t, l.Append(entry(1, i), hard(fmt.Sprint("commit", i))))
		must(t, l.Sync())
		if i == 3 || i == 6 {
			must(t, l.Roll([]wal.Record{hard(fmt.Sprint("carry", i))}))
		}
		if i == 3 {
			takeSnapshot(t, l, 2)
		}
	}
	disk.Kill()
	return disk
}

func takeSnapshot(t testing.TB, l *wal.Log, index uint64) {
	t.Helper()
	_, err := l.Snapshots().Create(wal.SnapshotInfo{Index: index, Term: 1, Meta: []byte("members")}, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "state at %d", index)
		return err
	})
	must(t, err)
}

// wholeSample is what is recovered from the sample.
var wholeSample = []string{
	"entry 1 3 e1.3", "entry 1 4 e1.4", "entry 1 5 e1.5", "entry 1 6 e1.6",
	"hard 0 0 carry6", "entry 1 7 e1.7", "hard 0 0 commit7", "entry 1 8 e1.8", "hard 0 0 commit8",
}

// withoutSnapshot is what is recovered when the snapshot is not usable: the log still begins
// with the first entry.
var withoutSnapshot = append([]string{"entry 1 1 e1.1", "entry 1 2 e1.2"}, wholeSample...)

// try opens a damaged disk. If the log is refused as corrupt, the disk must not have changed.
func try(t *testing.T, disk *waltest.Disk) (*wal.Recovered, []string, error) {
	t.Helper()
	before := disk.Calls()
	l, r, err := openOn(disk)
	if err != nil {
		if disk.Calls() != before {
			t.Fatalf("a log that cannot be opened was changed: %v", err)
		}
		return nil, nil, err
	}
	lines := show(t, r)
	must(t, l.Close())
	return r, lines, nil
}

func isCorrupt(err error) bool {
	var bad *wal.CorruptError
	return errors.As(err, &bad) && bad.File != "" && bad.What != "" && bad.Hint != ""
}

// lastRound returns where the last round of a segment begins and ends.
func lastRound(t testing.TB, disk *waltest.Disk, file string) (start, end int) {
	t.Helper()
	b := disk.Bytes(file)
	end = len(bytes.TrimRight(b, "\x00"))
	for at := (end - 1) &^ 7; at > 0; at -= 8 {
		// A head holds its own offset in its last eight bytes.
		if at >= 32 && b[at-8] == byte(at-32) && b[at-7] == byte((at-32)>>8) && bytes.Equal(b[at-6:at], make([]byte, 6)) {
			return at - 32, (end + 7) &^ 7
		}
	}
	t.Fatal("no round found")
	return 0, 0
}

// Every byte of every file is damaged in turn. Either the log opens with everything in it, or it
// does not open. The only exception is the last round, which looks like a torn write: it is cut
// off, and reported.
func TestEveryDamagedByteIsFound(t *testing.T) {
	t.Parallel()
	base := sample(t)
	start, end := lastRound(t, base, seg3)
	for _, file := range []string{"identity", seg1, seg2, seg3, snap2} {
		size := len(base.Bytes(file))
		used := len(bytes.TrimRight(base.Bytes(file), "\x00"))
		seal := used // without its seal, a segment looks as after an earlier crash
		if file == seg1 || file == seg2 {
			seal, _ = lastRound(t, base, file)
		}
		for at := range size {
			for _, mask := range []byte{0x04, 0xff} {
				disk := base.Clone()
				b := disk.Bytes(file)
				b[at] ^= mask
				disk.SetBytes(file, b)
				r, lines, err := try(t, disk)
				switch {
				case file == seg3 && at >= start && at < end:
					if err != nil || r.Torn == nil || r.Torn.Offset != int64(start) || !slices.Equal(lines, wholeSample[:7]) {
						t.Fatalf("%s byte %d ^ %#x in the last round: %v, %+v, %q", file, at, mask, err, r, lines)
					}
				case file == snap2 && err == nil:
					if len(r.Unusable) != 1 || !isCorrupt(r.Unusable[0]) || !slices.Equal(lines, withoutSnapshot) {
						t.Fatalf("%s byte %d ^ %#x: %+v, %q", file, at, mask, r, lines)
					}
				case err != nil:
					var version *wal.VersionError
					if !isCorrupt(err) && !errors.As(err, &version) {
						t.Fatalf("%s byte %d ^ %#x: %v", file, at, mask, err)
					}
				case !slices.Equal(lines, wholeSample):
					t.Fatalf("%s byte %d ^ %#x was not noticed: %q", file, at, mask, lines)
				case at < used-7 && file != "identity" && !(file != seg3 && at >= seal):
					t.Fatalf("%s byte %d ^ %#x opens, though it is used", file, at, mask)
				}
			}
		}
	}
}

// In a log that was closed, no round can be mistaken for a torn write, except the record that
// marks the close.
func TestNoRecordOfAClosedLogIsTakenForTorn(t *testing.T) {
	t.Parallel()
	base := sample(t)
	l, _, err := openOn(base)
	must(t, err)
	must(t, l.Append(entry(1, 9)))
	must(t, l.Close())
	want := append(slices.Clone(wholeSample), "entry 1 9 e1.9")
	start, _ := lastRound(t, base, seg3)
	for at := range base.Bytes(seg3) {
		disk := base.Clone()
		b := disk.Bytes(seg3)
		b[at] ^= 0x10
		disk.SetBytes(seg3, b)
		r, lines, err := try(t, disk)
		if err == nil && !slices.Equal(lines, want) || err != nil && !isCorrupt(err) || err == nil && at < start {
			t.Fatalf("byte %d of %d: %v %+v %q", at, start, err, r, lines)
		}
	}
}

// A file that is cut anywhere is noticed, because segments are created at their full size.
func TestEveryCutFileIsFound(t *testing.T) {
	t.Parallel()
	base := sample(t)
	for _, file := range []string{"identity", seg1, seg2, seg3, snap2} {
		for at := range len(base.Bytes(file)) {
			disk := base.Clone()
			disk.SetBytes(file, disk.Bytes(file)[:at])
			r, lines, err := try(t, disk)
			if file == snap2 && err == nil && len(r.Unusable) == 1 && slices.Equal(lines, withoutSnapshot) {
				continue
			}
			if file == "identity" && err == nil && slices.Equal(lines, wholeSample) {
				continue // its last byte ends the line
			}
			if !isCorrupt(err) {
				t.Fatalf("%s cut to %d bytes: %v %q", file, at, err, lines)
			}
		}
	}
}

// The same holds for the first segment of a new log, which is lengthened in steps: a cut through
// acknowledged rounds is not mistaken for a torn write.
func TestCutFirstSegmentIsFound(t *testing.T) {
	t.Parallel()
	const size = 2 << 20
	disk := waltest.NewDisk()
	opts := wal.Options{SegmentBytes: size, Disk: disk}
	l, _, err := wal.Open("", me, opts)
	must(t, err)
	for i := range uint64(5) {
		must(t, l.Append(wal.Record{Kind: wal.Entry, Term: 1, Index: i + 1, Data: bytes.Repeat([]byte("x"), size/8)}))
		must(t, l.Sync())
	}
	disk.Kill()
	whole := disk.Bytes(seg1)
	_, end := lastRound(t, disk, seg1)
	for _, at := range []int{size / 8, size / 4, size / 2, end, size - 1} {
		disk := disk.Clone()
		disk.SetBytes(seg1, whole[:min(at, len(whole))])
		if _, sum := verify(t, disk); sum.Problems != 1 {
			t.Errorf("cut at %d: verify finds %d problems, want 1", at, sum.Problems)
		}
		opts.Disk = disk
		if _, r, err := wal.Open("", me, opts); !isCorrupt(err) {
			t.Errorf("cut at %d: %v, %+v", at, err, r)
		}
	}
}

// A segment grows beyond its size if there is no room for the next one. If it is then cut at the
// end of a round, it must not be mistaken for a log that ends there.
func TestCutBehindTheSizeOfASegmentIsReported(t *testing.T) {
	t.Parallel()
	disk := waltest.NewDisk()
	l, _, err := openOn(disk)
	must(t, err)
	for i := range uint64(30) {
		must(t, l.Append(entry(1, i+1)))
		must(t, l.Sync())
	}
	disk.Kill()
	_, end := lastRound(t, disk, seg1)
	if end < 1024 {
		t.Fatalf("the segment did not grow, its rounds end at %d", end)
	}
	disk.SetBytes(seg1, disk.Bytes(seg1)[:end])
	r, _, err := try(t, disk)
	must(t, err)
	if r.Last != 30 || r.Torn == nil || r.Torn.Offset != int64(end) || r.Torn.What == "" {
		t.Errorf("recovered up to entry %d, torn %+v", r.Last, r.Torn)
	}
}

// The end of a sealed segment is known, even if nothing is left behind it.
func TestLostEndOfAnOlderSegmentIsFound(t *testing.T) {
	t.Parallel()
	base := waltest.NewDisk()
	l, _, err := openOn(base)
	must(t, err)
	for range 3 {
		must(t, l.Append(hard("x")))
		must(t, l.Sync())
	}
	must(t, l.Roll([]wal.Record{hard("x")}))
	base.Kill()
	seal, _ := lastRound(t, base, seg1)
	for at := 128; at < seal; at += 8 {
		disk := base.Clone()
		b := disk.Bytes(seg1)
		clear(b[at:])
		disk.SetBytes(seg1, b)
		if _, lines, err := try(t, disk); !isCorrupt(err) {
			t.Fatalf("zeros from %d on: %v %q", at, err, lines)
		}
	}
}

// A round that the disk wrote to another place is lost, which must be noticed.
func TestMisplacedRoundIsFound(t *testing.T) {
	t.Parallel()
	base := sample(t)
	start, end := lastRound(t, base, seg3)
	for by := 8; by < 400; by += 56 {
		disk := base.Clone()
		b := disk.Bytes(seg3)
		round := slices.Clone(b[start:end])
		clear(b[start:end])
		copy(b[start+by:], round)
		disk.SetBytes(seg3, b)
		if _, lines, err := try(t, disk); !isCorrupt(err) {
			t.Errorf("%d bytes behind: %v %q", by, err, lines)
		}
	}
}

// Zeros, as from a disk that lost a block, are not the end when something
// follows them.
func TestEveryLostBlockIsFound(t *testing.T) {
	t.Parallel()
	base := sample(t)
	for _, file := range []string{seg1, seg2, seg3} {
		start, _ := lastRound(t, base, file)
		for at := 0; at+64 <= start; at += 64 {
			disk := base.Clone()
			b := disk.Bytes(file)
			if len(bytes.Trim(b[at:at+64], "\x00")) == 0 {
				continue
			}
			clear(b[at : at+64])
			disk.SetBytes(file, b)
			if _, lines, err := try(t, disk); !isCorrupt(err) {
				t.Fatalf("%s without bytes %d to %d: %v %q", file, at, at+64, err, lines)
			}
		}
	}
}

func TestFilesThatDoNotBelongTogether(t *testing.T) {
	t.Parallel()
	other := waltest.NewDisk()
	l, _, err := wal.Open("", me, wal.Options{SegmentBytes: 1024, Disk: other})
	must(t, err)
	for range 2 {
		must(t, l.Roll(nil))
	}
	must(t, l.Close())
	peer := waltest.NewDisk()
	l, _, err = wal.Open("", wal.Identity{Cluster: "another", Replica: 1}, wal.Options{SegmentBytes: 1024, Disk: peer})
	must(t, err)
	takeSnapshot(t, l, 2)
	must(t, l.Close())

	tests := []struct {
		name   string
		damage func(*waltest.Disk)
		want   string
	}{
		{"segment in the middle is missing", func(d *waltest.Disk) { d.SetBytes(seg2, nil) }, seg3 + " is corrupt at offset 0: the segments between " + seg1 + " and this one are missing"},
		{"first segment is missing", func(d *waltest.Disk) { d.SetBytes(seg1, nil) }, "the log begins with entry 4, the newest usable snapshot ends at 2"},
		{"last segment is missing", func(d *waltest.Disk) { d.SetBytes(seg3, nil) }, seg3 + " is corrupt at offset 0: the segment is missing, " + seg2 + " says that it was there"},
		{"all segments are missing", func(d *waltest.Disk) {
			for _, s := range []string{seg1, seg2, seg3} {
				d.SetBytes(s, nil)
			}
		}, "the log has no segment"},
		{"segments are swapped", func(d *waltest.Disk) {
			a, b := d.Bytes(seg1), d.Bytes(seg2)
			d.SetBytes(seg1, b)
			d.SetBytes(seg2, a)
		}, seg1 + " is corrupt at offset 0: it is segment 2"},
		{"segment of another log", func(d *waltest.Disk) { d.SetBytes(seg2, other.Bytes(seg2)) }, "it belongs to another log"},
		{"last segment of another log", func(d *waltest.Disk) { d.SetBytes(seg3, other.Bytes(seg3)) }, "it belongs to another log"},
		{"not a segment", func(d *waltest.Disk) { d.SetBytes(seg2, []byte("hello")) }, "this is not a segment of a log"},
		{"empty segment", func(d *waltest.Disk) { d.SetBytes(seg3, []byte{}) }, "this is not a segment of a log"},
		{"identity is missing", func(d *waltest.Disk) { d.SetBytes("identity", nil) }, "it is missing beside other files"},
		{"identity and segments are missing", func(d *waltest.Disk) {
			for _, s := range []string{"identity", seg1, seg2, seg3} {
				d.SetBytes(s, nil)
			}
		}, "it is missing beside other files"},
		{"identity of a later version", func(d *waltest.Disk) {
			d.SetBytes("identity", bytes.Replace(d.Bytes("identity"), []byte(`"format":1`), []byte(`"format":9`), 1))
		}, "identity has format version 9, this program reads version 1"},
		{"identity of another replica", func(d *waltest.Disk) { d.SetBytes("identity", peer.Bytes("identity")) }, `belongs to cluster "another", not to "test"`},
		{"snapshot of another cluster", func(d *waltest.Disk) { d.SetBytes(snap2, peer.Bytes(snap2)) }, `it is of cluster "another", not of "test"`},
		{"snapshot under another name", func(d *waltest.Disk) {
			d.SetBytes(snap4, d.Bytes(snap2))
			d.SetBytes(snap2, nil)
		}, "it is snapshot 2 of term 1"},
		{"snapshot is missing", func(d *waltest.Disk) { d.SetBytes(snap2, nil) }, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			disk := sample(t)
			if strings.HasPrefix(tt.name, "snapshot of") || tt.name == "snapshot under another name" {
				disk.SetBytes(seg1, nil) // the log cannot be opened without the snapshot
			}
			tt.damage(disk)
			_, lines, err := try(t, disk)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("error %v, want none", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("error %v, recovered %q, want an error with %q", err, lines, tt.want)
			}
		})
	}
}

func TestFallsBackToAnOlderSnapshot(t *testing.T) {
	t.Parallel()
	disk := sample(t)
	l, _, err := openOn(disk)
	must(t, err)
	takeSnapshot(t, l, 4)
	must(t, l.Close())
	for _, damage := range []func([]byte) []byte{
		func(b []byte) []byte { b[9] ^= 1; return b },
		func(b []byte) []byte { b[60] ^= 1; return b },
		func(b []byte) []byte { return b[:50] },
		func(b []byte) []byte { return append(b, 0) },
	} {
		d := disk.Clone()
		d.SetBytes(snap4, damage(d.Bytes(snap4)))
		r, lines, err := try(t, d)
		must(t, err)
		if r.Snapshot.Index != 2 || len(r.Unusable) != 1 || !isCorrupt(r.Unusable[0]) {
			t.Errorf("recovered %+v", r)
		}
		same(t, lines, wholeSample)
		// The bad snapshot stays until newer ones are written.
		l, _, err := openOn(d)
		must(t, err)
		for i := uint64(5); i <= 7; i++ {
			takeSnapshot(t, l, i)
			must(t, l.Snapshots().Prune(2))
		}
		if got := l.Snapshots().List(); len(got) != 2 || got[0].Index != 6 || d.Bytes(snap4) != nil {
			t.Errorf("snapshots %v", got)
		}
		must(t, l.Close())
	}
}

// The oldest segment may begin with entries that replaced others, which are no longer in the
// log.
func TestFallsBackInFrontOfReplacedEntries(t *testing.T) {
	t.Parallel()
	disk := waltest.NewDisk()
	l, _, err := openOn(disk)
	must(t, err)
	for i := uint64(1); i <= 5; i++ {
		must(t, l.Append(entry(1, i)))
	}
	must(t, l.Sync())
	takeSnapshot(t, l, 3)
	must(t, l.Roll(nil))
	must(t, l.Append(entry(2, 4), entry(2, 5), entry(2, 6)))
	must(t, l.Sync())
	info, err := l.Snapshots().Create(wal.SnapshotInfo{Index: 6, Term: 2}, func(io.Writer) error { return nil })
	must(t, err)
	must(t, l.Release(6))
	must(t, l.Close())
	file := fmt.Sprintf("snapshot-%020d-%020d", info.Index, info.Term)
	disk.SetBytes(file, disk.Bytes(file)[:30])
	r, lines, err := try(t, disk)
	must(t, err)
	if r.Snapshot.Index != 3 || r.Last != 6 {
		t.Errorf("recovered %+v", r)
	}
	same(t, lines, []string{"entry 2 4 e2.4", "entry 2 5 e2.5", "entry 2 6 e2.6"})
}

// A torn write leaves any subset of its sectors, in a file that was used before.
func TestTornRoundIsCutOff(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 5))
	torn, whole := 0, 0
	for range 300 {
		disk := waltest.NewDisk()
		disk.Sector = []int{512, 4096}[random.IntN(2)]
		opts := wal.Options{SegmentBytes: 128 << 10, Disk: disk}
		l, _, err := wal.Open("", me, opts)
		must(t, err)
		payload := func(n int) []byte { return bytes.Repeat([]byte{byte(random.Uint32())}, n) }
		for i := range 6 { // fill two segments, and write the first one again
			must(t, l.Append(wal.Record{Kind: wal.Intent, Data: payload(30 << 10)}))
			must(t, l.Sync())
			if i == 2 || i == 5 {
				must(t, l.Roll([]wal.Record{hard("kept")}))
				must(t, l.Release(0))
			}
		}
		must(t, l.Append(hard("flushed")))
		must(t, l.Sync())
		disk.PowerAt(1 + random.IntN(2))
		must(t, l.Append(wal.Record{Kind: wal.Intent, Data: payload(random.IntN(60 << 10))}))
		if err := l.Sync(); !errors.Is(err, waltest.ErrPower) {
			t.Fatal(err)
		}
		disk.Restart(random)
		l, r, err := wal.Open("", me, opts)
		must(t, err)
		lines := show(t, r)
		switch {
		case len(lines) == 3:
			whole++
		case len(lines) != 2 || lines[0] != "hard 0 0 kept" || lines[1] != "hard 0 0 flushed":
			t.Fatalf("recovered %q", lines)
		case r.Torn != nil:
			torn++
		}
		must(t, l.Close())
	}
	if torn < 30 || whole < 30 {
		t.Errorf("%d torn, %d whole of 300: too few to say anything", torn, whole)
	}
}

// The zeros that follow each round distinguish the end of a log from a torn head, even if the
// rest of the file holds old data.
func TestEndInAFileWithAFormerLifeIsNotTorn(t *testing.T) {
	t.Parallel()
	disk := waltest.NewDisk()
	l, _, err := openOn(disk)
	must(t, err)
	for !l.Full() {
		must(t, l.Append(hard("former life")))
		must(t, l.Sync())
	}
	must(t, l.Roll(nil))
	must(t, l.Release(0))
	must(t, l.Roll(nil))
	for range 5 {
		must(t, l.Append(hard("x")))
		must(t, l.Sync())
	}
	if !bytes.Contains(disk.Bytes(seg3), []byte("former life")) {
		t.Fatal("the file was not written again")
	}
	disk.Kill()
	r, lines, err := try(t, disk.Clone())
	if err != nil || len(lines) != 5 || r.Torn != nil {
		t.Errorf("recovered %q, %+v, %v", lines, r, err)
	}
	// A single flipped bit in the last head is not taken for the end.
	b := disk.Bytes(seg3)
	end := bytes.LastIndex(b, []byte{byte(wal.Hard), 0, 0, 1, 'x'})
	b[end-9] ^= 1
	disk.SetBytes(seg3, b)
	r, lines, err = try(t, disk)
	if err != nil || len(lines) != 4 || r.Torn == nil {
		t.Errorf("recovered %q, %+v, %v", lines, r, err)
	}
}

func TestReadErrorsAreNoCorruption(t *testing.T) {
	t.Parallel()
	disk := sample(t)
	_, _, err := openOn(unreadable{disk})
	if !errors.Is(err, syscall.EIO) || isCorrupt(err) {
		t.Errorf("error %v, want what the disk said", err)
	}
}

// unreadable is a disk whose second segment has a bad sector.
type unreadable struct{ *waltest.Disk }

func (d unreadable) Open(name string, write bool) (wal.File, error) {
	f, err := d.Disk.Open(name, write)
	if name == seg2 {
		f = badSector{f}
	}
	return f, err
}

type badSector struct{ wal.File }

func (f badSector) ReadAt(p []byte, at int64) (int, error) {
	if at > 128 {
		return 0, syscall.EIO
	}
	return f.File.ReadAt(p, at)
}

// A torn round whose missing sectors are later supplied by another one that
// happens to hold the same bytes there does not come back: its head is gone.
func TestTornRoundNeverComesBack(t *testing.T) {
	t.Parallel()
	disk := sample(t)
	l, _, err := openOn(disk)
	must(t, err)
	write := func(l *wal.Log, vote string) {
		must(t, l.Append(hard(vote), wal.Record{Kind: wal.Intent, Data: bytes.Repeat([]byte{'x'}, 1500)}))
		must(t, l.Sync())
	}
	// mix keeps the sectors of a written file before a place, and after it
	// those of another.
	mix := func(before, after []byte, at int) []byte {
		after = append(after, make([]byte, max(0, len(before)-len(after)))...)
		return append(slices.Clone(before[:at]), after[at:]...)
	}
	const sector = 512
	old := disk.Bytes(seg3)
	write(l, "vote for a")
	first, _ := lastRound(t, disk, seg3)
	at := (first/sector + 1) * sector
	disk.Kill()
	disk.SetBytes(seg3, mix(disk.Bytes(seg3), old, at)) // the head is there, the rest is not

	l, r, err := openOn(disk)
	must(t, err)
	if r.Torn == nil || r.Torn.Offset != int64(first) {
		t.Fatalf("recovered %+v, want a torn round at %d", r, first)
	}
	old = disk.Bytes(seg3)
	write(l, "vote for b")
	disk.Kill()
	disk.SetBytes(seg3, mix(old, disk.Bytes(seg3), at)) // now the head is not, the rest is

	l, r, err = openOn(disk)
	must(t, err)
	same(t, show(t, r), wholeSample)
	must(t, l.Close())
}
