package wal

import (
	"bytes"
	"errors"
	"io/fs"
	"syscall"
	"testing"
)

// A write that is flushed leaves in a file what a write leaves, and says what is
// wrong as one does.
func TestWriteSync(t *testing.T) {
	d := dirDisk{t.TempDir()}
	f, err := d.Create("file")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := f.(syncWriter); !ok {
		t.Fatal("a file of a directory cannot write and flush with one call")
	}
	long := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	for _, w := range []struct {
		off  int64
		data []byte
	}{{0, []byte("head")}, {100, long}, {2, []byte("ED")}, {5, nil}} {
		if err := writeSync(f, w.data, w.off); err != nil {
			t.Fatal(err)
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
	if err := writeSync(read, []byte("x"), 0); !errors.Is(err, syscall.EBADF) || !errors.As(err, &path) {
		t.Errorf("a file that is open for reading: %v", err)
	}
	if err := errors.Join(f.Close(), read.Close()); err != nil {
		t.Fatal(err)
	}
}
