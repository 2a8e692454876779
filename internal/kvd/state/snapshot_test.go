package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// filled returns a store with n keys of size bytes, a lease with a key and a
// time to live.
func filled(n, size int) *Store {
	s := New(Config{})
	apply(s, wire.Command{Verb: wire.LeaseGrant, TTL: 60_000})
	apply(s, wire.Command{Verb: wire.Set, Key: "leased", Lease: 1})
	apply(s, wire.Command{Verb: wire.Set, Key: "timed", TTL: 1000, Value: []byte("soon gone")})
	for i := range n {
		apply(s, wire.Command{Verb: wire.Set, Key: fmt.Sprint("k", i), Value: bytes.Repeat([]byte{byte(i)}, size)})
	}
	return s
}

// apply runs c at the next revision and the store's own clock.
func apply(s *Store, c wire.Command) wire.Result {
	r, err := wire.ParseResult(s.Apply(s.Revision()+1, start, c.Append(nil)))
	if err != nil {
		panic(err)
	}
	return r
}

func form(t *testing.T, s *Store) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := s.Snapshot().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestSnapshotOfManyChunks(t *testing.T) {
	s := filled(400, 10_000)
	apply(s, wire.Command{Verb: wire.Set, Key: "large", Value: make([]byte, wire.MaxValue)})
	b := form(t, s)
	if len(b) < 4_000_000+wire.MaxValue {
		t.Errorf("snapshot of %d bytes", len(b))
	}
	fresh := restored(t, s, Config{})
	if fresh.Digest() != s.Digest() || fresh.Bytes() != s.Bytes() || fresh.Len() != s.Len() {
		t.Error("the restored store differs")
	}
	// A key expires in the restored store when it does in the first.
	for _, store := range []*Store{s, fresh} {
		store.Apply(store.Revision()+1, start+1_000_000_000, nil)
		if _, ok := store.Get("timed"); ok {
			t.Error("a key outlives its time")
		}
		store.Apply(store.Revision()+1, start+60_000_000_000, nil)
		if _, ok := store.Get("leased"); ok {
			t.Error("a key outlives its lease")
		}
	}
	if fresh.Digest() != s.Digest() {
		t.Error("the restored store goes another way")
	}
}

func TestSnapshotReadsNoFurther(t *testing.T) {
	b := bytes.NewBuffer(append(form(t, filled(3, 10)), "what follows"...))
	if err := New(Config{}).Restore(iotestOneByte{b}); err != nil {
		t.Fatal(err)
	}
	if b.String() != "what follows" {
		t.Errorf("left over: %q", b.String())
	}
}

// iotestOneByte hands out one byte at a time.
type iotestOneByte struct{ r io.Reader }

func (o iotestOneByte) Read(b []byte) (int, error) {
	return o.r.Read(b[:min(len(b), 1)])
}

// TestSnapshotIsFrozen changes every key of a store in every way while another
// goroutine writes its snapshot.
func TestSnapshotIsFrozen(t *testing.T) {
	s := filled(3000, 20)
	want := form(t, s)
	snapshot := s.Snapshot()
	type written struct {
		b   bytes.Buffer
		err error
	}
	done := make(chan *written)
	go func() {
		var w written
		_, w.err = snapshot.WriteTo(&w.b)
		done <- &w
	}()
	for i := range 3000 {
		key := fmt.Sprint("k", i)
		for _, c := range []wire.Command{
			{Verb: wire.Append, Key: key, Value: []byte("more")},
			{Verb: wire.Expire, Key: key, TTL: 1000},
			{Verb: wire.Set, Key: key, Lease: 1},
			{Verb: wire.Set, Key: "new" + key},
		} {
			apply(s, c)
		}
		if i%3 == 0 {
			apply(s, wire.Command{Verb: wire.Delete, Keys: []string{key}})
		}
	}
	apply(s, wire.Command{Verb: wire.LeaseRevoke, Lease: 1})
	apply(s, wire.Command{Verb: wire.DeleteRange})
	if w := <-done; w.err != nil || !bytes.Equal(w.b.Bytes(), want) {
		t.Errorf("the snapshot shows what came after it (%v)", w.err)
	}
}

func TestSnapshotWriterFails(t *testing.T) {
	want := errors.New("disk full")
	for _, room := range []int{0, 10, 1 << 20} {
		w := &fullDisk{room: room, err: want}
		if _, err := filled(200, 10_000).Snapshot().WriteTo(w); !errors.Is(err, want) {
			t.Errorf("%d bytes of room: %v", room, err)
		}
	}
}

type fullDisk struct {
	room int
	err  error
}

func (f *fullDisk) Write(b []byte) (int, error) {
	if f.room -= len(b); f.room < 0 {
		return 0, f.err
	}
	return len(b), nil
}

// TestRestoreRefuses damages a snapshot in every byte and cuts it at every
// place: the store stays as it was.
func TestRestoreRefuses(t *testing.T) {
	good := form(t, filled(3, 3))
	s := filled(5, 5)
	digest := s.Digest()
	for i := range good {
		for _, flip := range []byte{1, 0x80, 0xff} {
			bad := bytes.Clone(good)
			bad[i] ^= flip
			if s.Restore(bytes.NewReader(bad)) == nil {
				t.Errorf("byte %d ^ %#x: no error", i, flip)
			}
		}
		if err := s.Restore(bytes.NewReader(good[:i])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut at %d: %v", i, err)
		}
	}
	if s.Digest() != digest || s.Len() != 7 {
		t.Error("a restore that failed changed the store")
	}
}

// framed puts payloads into chunks with the right checksums.
func framed(payloads ...[]byte) []byte {
	b := []byte(magic)
	crc := crc32.Checksum(b, castagnoli)
	for _, payload := range append(payloads, nil) {
		chunk := append(binary.LittleEndian.AppendUint32(nil, uint32(len(payload))), payload...)
		crc = crc32.Update(crc, castagnoli, chunk)
		b = binary.LittleEndian.AppendUint32(append(b, chunk...), crc)
	}
	return b
}

func numbers(list ...uint64) (b []byte) {
	for _, v := range list {
		b = binary.AppendUvarint(b, v)
	}
	return b
}

// TestRestoreChecksContent gives snapshots whose checksums are right and whose
// content is not.
func TestRestoreChecksContent(t *testing.T) {
	const now = 1000
	head := func(revision, leases, items uint64) []byte {
		return binary.LittleEndian.AppendUint64(numbers(revision, now, leases, items), 0)
	}
	item := func(key string, revision, deadline, lease uint64) []byte {
		b := append(numbers(uint64(len(key))), key...)
		return append(b, numbers(0, revision, deadline, lease)...)
	}
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for _, c := range []struct {
		name string
		b    []byte
		want string
	}{
		{"nothing", framed(), "it ends too early"},
		{"digest", framed(head(1, 0, 0)), "digest"},
		{"fewer items", framed(head(1, 0, 1)), "it ends too early"},
		{"more items", framed(join(head(1, 0, 0), item("a", 1, 0, 0))), "left over"},
		{"another chunk", framed(head(1, 0, 0), item("a", 1, 0, 0)), "left over"},
		{"item in two chunks", framed(join(head(1, 0, 1), numbers(1)), []byte("a")), "string of 1 bytes"},
		{"order", framed(join(head(9, 0, 2), item("b", 1, 0, 0), item("a", 1, 0, 0))), `key "a" after "b"`},
		{"twice", framed(join(head(9, 0, 2), item("b", 1, 0, 0), item("b", 1, 0, 0))), `key "b" after "b"`},
		{"revision of the future", framed(join(head(9, 0, 1), item("b", 10, 0, 0))), "revision 10 of 9"},
		{"no revision", framed(join(head(9, 0, 1), item("b", 0, 0, 0))), "revision 0 of 9"},
		{"over", framed(join(head(9, 0, 1), item("b", 1, now, 0))), `key "b" has expired`},
		{"unknown lease", framed(join(head(9, 0, 1), item("b", 1, 0, 4))), "unknown lease 4"},
		{"lease over", framed(join(head(9, 1, 0), numbers(4, 5, now))), "lease 4 has expired"},
		{"lease of the future", framed(join(head(9, 1, 0), numbers(10, 5, now+1))), "lease 10 after"},
		{"leases' order", framed(join(head(9, 2, 0), numbers(4, 5, now+1, 4, 5, now+1))), "lease 4 after 4"},
		{"long key", framed(join(head(9, 0, 1), numbers(wire.MaxKey+1))), "string of 65537 bytes"},
		{"negative clock", framed(numbers(1, 1<<63, 0, 0)), "out of range"},
		{"long chunk", append([]byte(magic), 0xff, 0xff, 0xff, 0xff), "chunk of 4294967295 bytes"},
		{"later version", []byte("weirkv\x00\x02"), "not a snapshot of this version"},
	} {
		err := New(Config{}).Restore(bytes.NewReader(c.b))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
}

// FuzzRestore gives Restore payloads in sound chunks, and the bytes as they are.
func FuzzRestore(f *testing.F) {
	s := filled(2, 4)
	var b bytes.Buffer
	if _, err := s.Snapshot().WriteTo(&b); err != nil {
		f.Fatal(err)
	}
	whole := b.Bytes()
	f.Add(whole)
	f.Add(whole[len(magic)+chunkHead : len(whole)-3*chunkHead])
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, snapshot := range [][]byte{b, framed(b), framed(b[:len(b)/2], b[len(b)/2:])} {
			s := New(Config{})
			if s.Restore(bytes.NewReader(snapshot)) != nil {
				if s.Len() != 0 || s.Revision() != 0 || s.Digest() != New(Config{}).Digest() {
					t.Error("a restore that failed changed the store")
				}
				continue
			}
			if twin := restored(t, s, Config{}); twin.Digest() != s.Digest() {
				t.Error("a store and its copy differ")
			}
			s.Apply(s.Revision()+1, s.Due(), nil)
		}
	})
}
