//go:build linux

package wal

import (
	"bytes"
	"errors"
	"io/fs"
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
