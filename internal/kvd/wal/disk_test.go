//go:build linux

package wal

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// haveRing skips a test where the kernel gives this process no ring.
func haveRing(t *testing.T) {
	t.Helper()
	r, err := newRing()
	if err != nil {
		t.Skipf("a file is flushed by calls that block: %v", err)
	}
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, d dirDisk) *dirFile {
	t.Helper()
	made, err := d.Create("file")
	if err != nil {
		t.Fatal(err)
	}
	f, ok := made.(*dirFile)
	if !ok {
		t.Fatalf("a file of a directory is a %T", made)
	}
	return f
}

// A write that is flushed leaves in a file what a write leaves, and says what is
// wrong as one does: through a ring and by a call that blocks.
func TestWriteSync(t *testing.T) {
	for _, c := range []struct {
		name  string
		plain bool
	}{{"aside", false}, {"plain", true}} {
		t.Run(c.name, func(t *testing.T) {
			if !c.plain {
				haveRing(t)
			}
			d := dirDisk{t.TempDir()}
			f := create(t, d)
			long := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
			for _, w := range []struct {
				off  int64
				data []byte
			}{{0, []byte("head")}, {100, long}, {2, []byte("ED")}, {5, nil}} {
				if aside, err := writeSync(f, w.data, w.off, !c.plain); err != nil || aside == c.plain {
					t.Fatalf("aside: %t, %v", aside, err)
				}
			}
			want := append([]byte("heED"), make([]byte, 96)...)
			want = append(want, long...)
			got := make([]byte, len(want))
			if n, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes, %v", n, err)
			}
			if size, err := f.Size(); err != nil || size != int64(len(want)) {
				t.Errorf("%d bytes long, %v", size, err)
			}
			read, err := d.Open("file", false)
			if err != nil {
				t.Fatal(err)
			}
			var path *fs.PathError
			if _, err := writeSync(read, []byte("x"), 0, !c.plain); !errors.Is(err, syscall.EBADF) || !errors.As(err, &path) {
				t.Errorf("a file that is open for reading: %v", err)
			}
			if err := errors.Join(f.Close(), read.Close()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// notARing puts another file in a ring's place.
func notARing(fd int) error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	return errors.Join(unix.Dup3(int(null.Fd()), fd, unix.O_CLOEXEC), null.Close())
}

// A file whose ring fails goes on without it, and loses nothing.
func TestRingFails(t *testing.T) {
	haveRing(t)
	for name, hurt := range map[string]func(r *ring) error{
		"it takes no entry":       func(r *ring) error { return control(r.conn, notARing) },
		"it does not know writes": func(r *ring) error { r.op = 255; return nil },
	} {
		t.Run(name, func(t *testing.T) {
			f := create(t, dirDisk{t.TempDir()})
			if aside, err := writeSync(f, []byte("one"), 0, true); err != nil || !aside {
				t.Fatalf("aside: %t, %v", aside, err)
			}
			if err := hurt(f.ring); err != nil {
				t.Fatal(err)
			}
			for i, part := range []string{" two", " three"} {
				if aside, err := writeSync(f, []byte(part), int64(3+4*i), true); err != nil || aside {
					t.Fatalf("aside: %t, %v", aside, err)
				}
			}
			if !f.plain || f.ring != nil {
				t.Error("the ring is still used")
			}
			got := make([]byte, 13)
			if _, err := f.ReadAt(got, 0); err != nil || string(got) != "one two three" {
				t.Errorf("read %q, %v", got, err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A file that holds the blocks of a write is written past the page cache, aside or not,
// with a ring or without, and what is around the write stays: of blocks that were
// written before, of others, and of what was written by other means in between.
func TestDirectWrites(t *testing.T) {
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("plain %t", plain), func(t *testing.T) {
			if !plain {
				haveRing(t)
			}
			f := create(t, dirDisk{t.TempDir()})
			f.plain = plain
			want := make([]byte, 1<<20)
			r := rand.New(rand.NewPCG(1, 2))
			for i := range want {
				want[i] = byte(r.Uint32())
			}
			if _, err := f.WriteAt(want, 0); err != nil {
				t.Fatal(err)
			}
			if !f.isDirect(1, 0) {
				t.Skip("this file system takes no direct writes")
			}
			off := int64(0)
			for i := range 400 {
				data := bytes.Repeat([]byte{byte(i)}, 1+r.IntN(1<<r.IntN(15)))
				switch r.IntN(10) {
				case 0:
					off = r.Int64N(int64(len(want)) - 1<<16)
				case 1:
					off &^= directBlock - 1
				case 2: // by other means, into a block that the last write has kept
					if _, err := f.WriteAt(data[:1], off); err != nil {
						t.Fatal(err)
					}
					want[off] = data[0]
				}
				if off+int64(len(data)) > int64(len(want))-directBlock {
					off = 0
				}
				aside := r.IntN(2) == 0
				if did, err := writeSync(f, data, off, aside); err != nil || did != (aside && !plain) {
					t.Fatalf("write %d, aside %t: %t, %v", i, aside, did, err)
				}
				copy(want[off:], data)
				off += int64(len(data)) - int64(r.IntN(len(data)))
			}
			if f.direct == nil || f.plain != plain {
				t.Errorf("direct writes were given up: %+v", f)
			}
			got := make([]byte, len(want))
			if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
				t.Errorf("the file is not what was written, %v", err)
			}
			// A write whose last block the file has not lengthens it by itself only.
			if _, err := writeSync(f, []byte("end"), int64(len(want)), false); err != nil {
				t.Fatal(err)
			}
			if size, err := f.Size(); err != nil || size != int64(len(want))+3 {
				t.Errorf("%d bytes long, %v", size, err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
