package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// copyWorkers is how many directories are copied at once, each file by file. A data
// directory is about a thousand small files, most of them in three directories.
const copyWorkers = 4

// treeCopy copies a directory with system calls instead of package os: go test records each
// file that a test opens or stats through os, and checks each of them before it caches the
// result, which took 19 µs per file.
type treeCopy struct {
	as *identity // who gets the files, nil for this process
	// holes leaves out blocks of zeros, which then cost no time and no memory until they are
	// written. It is not for disks that are measured: filling a hole takes longer than
	// overwriting a block.
	holes    bool
	distinct atomic.Bool // the copy cannot share blocks with the original, as an attempt showed
	dirs     *errgroup.Group
}

// copyTree copies the content of directory src into the existing directory dst: directories and
// regular files with their modes, owned by as.
func copyTree(ctx context.Context, src, dst string, as *identity, holes bool) error {
	t := treeCopy{as: as, holes: holes}
	t.dirs, ctx = errgroup.WithContext(ctx)
	t.dirs.SetLimit(copyWorkers)
	walkErr := t.dir(ctx, src, dst)
	if err := errors.Join(walkErr, t.dirs.Wait()); err != nil {
		return fmt.Errorf("copy data directory: %w", err)
	}
	return nil
}

// dir copies the content of src into dst. The files are copied concurrently.
func (t *treeCopy) dir(ctx context.Context, src, dst string) error {
	entries, err := readDirUnnoted(src)
	if err != nil {
		return err
	}
	var files []string
	for _, e := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		from, to := filepath.Join(src, e.Name()), filepath.Join(dst, e.Name())
		switch {
		case e.IsDir():
			var st unix.Stat_t
			if err := unix.Stat(from, &st); err != nil {
				return &fs.PathError{Op: "stat", Path: from, Err: err}
			}
			if err := unix.Mkdir(to, st.Mode&0o777); err != nil {
				return &fs.PathError{Op: "mkdir", Path: to, Err: err}
			}
			if err := t.as.chown(to); err != nil {
				return err
			}
			if err := t.dir(ctx, from, to); err != nil {
				return err
			}
		case e.Type().IsRegular():
			files = append(files, e.Name())
		default:
			return fmt.Errorf("%s is neither a file nor a directory", from)
		}
	}
	if len(files) > 0 {
		t.dirs.Go(func() error { return t.files(ctx, src, dst, files) })
	}
	return nil
}

// readDirUnnoted is os.ReadDir, hidden from go test.
func readDirUnnoted(path string) ([]fs.DirEntry, error) {
	fd, err := openUnnoted(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	return dir.ReadDir(-1)
}

// openUnnoted opens path, which is relative to the directory at.
func openUnnoted(at int, path string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Openat(at, path, flags|unix.O_CLOEXEC, mode)
		if err == nil {
			return fd, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return -1, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// files copies some of the files of src into dst.
func (t *treeCopy) files(ctx context.Context, src, dst string, names []string) (err error) {
	from, err := openUnnoted(unix.AT_FDCWD, src, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	to, err := openUnnoted(unix.AT_FDCWD, dst, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	for _, name := range names {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := t.file(from, to, name); err != nil {
			return fmt.Errorf("%s: %w", dst, err)
		}
	}
	return nil
}

// file shares the blocks if the file system can, else it copies them.
func (t *treeCopy) file(from, to int, name string) (err error) {
	in, err := openUnnoted(from, name, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(in)
	var st unix.Stat_t
	if err := unix.Fstat(in, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	out, err := openUnnoted(to, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, st.Mode&0o777)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(out)) }()
	if t.as != nil {
		if err := unix.Fchown(out, int(t.as.uid), int(t.as.gid)); err != nil {
			return &fs.PathError{Op: "chown", Path: name, Err: err}
		}
	}
	if st.Size == 0 {
		return nil
	}
	if !t.distinct.Load() {
		if unix.IoctlFileClone(out, in) == nil {
			return nil
		}
		t.distinct.Store(true)
	}
	if err := t.content(out, in, st.Size); err != nil {
		return &fs.PathError{Op: "copy", Path: name, Err: err}
	}
	return nil
}

// copyBlock is the size of a read, and of the smallest hole.
const copyBlock = 64 << 10

var (
	copyBlocks = sync.Pool{New: func() any { return new([copyBlock]byte) }}
	noContent  [copyBlock]byte
)

func (t *treeCopy) content(out, in int, size int64) error {
	block := copyBlocks.Get().(*[copyBlock]byte)
	defer copyBlocks.Put(block)
	at := int64(0)
	for at < size {
		if t.holes && size > copyBlock { // existing holes need not be read
			data, err := unix.Seek(in, at, unix.SEEK_DATA)
			if errors.Is(err, unix.ENXIO) {
				break // up to the end
			}
			if err == nil { // otherwise the file system does not support it
				at = data
			}
		}
		n, err := unix.Pread(in, block[:], at)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n == 0:
			return errors.New("the file became shorter")
		}
		b := block[:n]
		if t.holes && n == copyBlock && bytes.Equal(b, noContent[:]) {
			at += copyBlock
			continue
		}
		for len(b) > 0 {
			n, err := unix.Pwrite(out, b, at)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return err
			}
			if n > 0 {
				b, at = b[n:], at+int64(n)
			}
		}
	}
	if t.holes {
		return unix.Ftruncate(out, size) // extends the file over a hole at its end
	}
	return nil
}
