package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// tempPrefix is the prefix of files that are not committed. List hides them.
const tempPrefix = ".weir-tmp-"

// Local is a [Storage] in a directory. Its files are readable by their owner only, because they
// contain whole databases. A committed object is durable: its content, its name and the
// directories above it are flushed.
type Local struct {
	root string

	mu      sync.Mutex
	durable map[string]bool // directories whose own names are flushed
	kept    string          // the existing directory at or above the root, from before this storage; "" until the root is created
}

// NewLocal returns the storage in directory dir, which need not exist yet.
func NewLocal(dir string) (*Local, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find directory %s: %w", dir, err)
	}
	info, err := os.Stat(abs)
	switch {
	case err == nil && !info.IsDir():
		return nil, &Error{Op: "open", Place: dir, Err: syscall.ENOTDIR, Hint: "name a directory"}
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, localError("open", dir, err)
	}
	return &Local{root: abs, durable: map[string]bool{}}, nil
}

// String returns the directory.
func (l *Local) String() string { return l.root }

// file returns the path of an object. Names may come from a forged manifest, so they must not
// lead out of the root.
func (l *Local) file(name string) (string, error) {
	if !fs.ValidPath(name) || name == "." || strings.ContainsRune(name, 0) {
		return "", &Error{Op: "open", Place: name, Err: fs.ErrInvalid, Hint: "the name of an object is a plain relative path"}
	}
	return filepath.Join(l.root, filepath.FromSlash(name)), nil
}

// Create implements [Storage].
func (l *Local) Create(_ context.Context, name string) (ObjectWriter, error) {
	return l.create(name)
}

func (l *Local) create(name string) (*localWriter, error) {
	target, err := l.file(name)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(target)
	if err := l.mkdir(dir); err != nil {
		return nil, localError("create directory", dir, err)
	}
	f, err := os.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return nil, localError("create", target, err)
	}
	return &localWriter{name: name, target: target, f: f}, nil
}

// mkdir creates a directory and those above it up to the root, and flushes the name of each one
// that is not known to be durable.
func (l *Local) mkdir(dir string) error {
	l.mu.Lock()
	known := l.durable[dir]
	l.mu.Unlock()
	if known {
		return nil
	}
	if err := l.noteKept(); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for d := dir; ; d = filepath.Dir(d) {
		parent := filepath.Dir(d)
		if d != parent {
			// The parent of the root may belong to another user; if it cannot be opened, the
			// root existed before weir.
			if err := syncDir(parent); err != nil && d != l.root {
				return err
			}
		}
		l.mu.Lock()
		l.durable[d] = true
		done := d == l.root || l.durable[parent]
		l.mu.Unlock()
		if done || d == parent {
			return nil
		}
	}
}

// noteKept records, before anything is created, which directory this storage must not remove:
// the root if it exists, otherwise the nearest one above it that does.
func (l *Local) noteKept() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept != "" {
		return nil
	}
	dir := l.root
	for {
		_, err := os.Lstat(dir)
		if err == nil {
			l.kept = dir
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return err
		}
		dir = filepath.Dir(dir)
	}
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	return errors.Join(err, d.Close())
}

// localWriter writes an object under a temporary name.
type localWriter struct {
	name, target string
	f            *os.File
	n            int64
	ended        bool
}

func (w *localWriter) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	w.n += int64(n)
	if err != nil {
		return n, localError("write", w.target, err)
	}
	return n, nil
}

func (w *localWriter) Commit() (ObjectInfo, error) {
	info, err := w.settle()
	if err == nil {
		err = os.Rename(w.f.Name(), w.target)
	}
	return w.finish(info, err)
}

// settle makes the content durable under the temporary name.
func (w *localWriter) settle() (fs.FileInfo, error) {
	w.ended = true
	err := w.f.Sync()
	info, statErr := w.f.Stat()
	if err := errors.Join(err, statErr, w.f.Close()); err != nil {
		return nil, err
	}
	if info.Size() != w.n {
		return nil, fmt.Errorf("%d bytes were written, the file has %d", w.n, info.Size())
	}
	return info, nil
}

// finish flushes the new name, or removes what is left after an error.
func (w *localWriter) finish(info fs.FileInfo, err error) (ObjectInfo, error) {
	if err != nil {
		err = localError("write", w.target, err)
		if gone := os.Remove(w.f.Name()); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
		return ObjectInfo{}, err
	}
	if err := syncDir(filepath.Dir(w.target)); err != nil {
		return ObjectInfo{}, localError("flush directory of", w.target, err)
	}
	return ObjectInfo{Name: w.name, Size: info.Size(), Modified: info.ModTime()}, nil
}

func (w *localWriter) Abort() error {
	if w.ended {
		return nil
	}
	w.ended = true
	if err := errors.Join(w.f.Close(), os.Remove(w.f.Name())); err != nil {
		return localError("remove", w.f.Name(), err)
	}
	return nil
}

// Open implements [Storage].
func (l *Local) Open(_ context.Context, name string, offset int64) (io.ReadCloser, error) {
	target, err := l.file(name)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(target)
	if err != nil {
		return nil, localError("open", target, err)
	}
	if offset > 0 {
		if _, err := f.Seek(offset, io.SeekStart); err != nil {
			return nil, errors.Join(localError("read", target, err), f.Close())
		}
	}
	return f, nil
}

// Stat implements [Storage].
func (l *Local) Stat(_ context.Context, name string) (ObjectInfo, error) {
	target, err := l.file(name)
	if err != nil {
		return ObjectInfo{}, err
	}
	info, err := os.Stat(target)
	if err != nil {
		return ObjectInfo{}, localError("look at", target, err)
	}
	if info.IsDir() {
		return ObjectInfo{}, localError("look at", target, fs.ErrNotExist)
	}
	return ObjectInfo{Name: name, Size: info.Size(), Modified: info.ModTime()}, nil
}

// List implements [Storage]. Names are in lexical order, directory by directory.
func (l *Local) List(ctx context.Context, dir string, deep bool) iter.Seq2[ObjectInfo, error] {
	return func(yield func(ObjectInfo, error) bool) {
		top := l.root
		if dir != "" {
			var err error
			if top, err = l.file(strings.TrimSuffix(dir, "/")); err != nil {
				yield(ObjectInfo{}, err)
				return
			}
		}
		l.walk(ctx, top, strings.TrimSuffix(dir, "/"), deep, yield)
	}
}

// walk yields the content of the directory top, called name in the storage, and reports whether
// to continue.
func (l *Local) walk(ctx context.Context, top, name string, deep bool, yield func(ObjectInfo, error) bool) bool {
	entries, err := os.ReadDir(top)
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return yield(ObjectInfo{}, localError("list", top, err)) && false
	}
	for _, e := range entries {
		at := path.Join(name, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), tempPrefix):
		case e.IsDir() && deep:
			if !l.walk(ctx, filepath.Join(top, e.Name()), at, deep, yield) {
				return false
			}
		case e.IsDir():
			if !yield(ObjectInfo{Name: at + "/"}, nil) {
				return false
			}
		default:
			info, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue // deleted since ReadDir
			}
			if err != nil {
				return yield(ObjectInfo{}, localError("look at", filepath.Join(top, e.Name()), err)) && false
			}
			if !yield(ObjectInfo{Name: at, Size: info.Size(), Modified: info.ModTime()}, nil) {
				return false
			}
		}
	}
	return true
}

// Put implements [Storage].
func (l *Local) Put(_ context.Context, name string, data []byte) error {
	w, err := l.create(name)
	if err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return errors.Join(err, w.Abort())
	}
	_, err = w.Commit()
	return err
}

// PutNew implements [Storage] with a hard link, which fails if the name exists and makes the
// whole content appear at once.
func (l *Local) PutNew(_ context.Context, name string, data []byte) error {
	w, err := l.create(name)
	if err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return errors.Join(err, w.Abort())
	}
	info, err := w.settle()
	if err == nil {
		err = linkNew(w.f.Name(), w.target)
	}
	_, err = w.finish(info, err)
	return err
}

// linkNew renames a file unless the new name exists. If the file system has no hard links, it
// claims the name with an empty file and renames over it: for a moment, other processes may see
// an empty file.
func linkNew(from, to string) error {
	err := os.Link(from, to)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOTSUP) || errors.Is(err, syscall.ENOSYS) {
		return claimNew(from, to)
	}
	if err != nil {
		return err
	}
	return os.Remove(from)
}

func claimNew(from, to string) error {
	claim, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(claim.Close(), os.Rename(from, to))
}

// Delete implements [Storage]. It also removes directories that become empty.
func (l *Local) Delete(ctx context.Context, names ...string) error {
	dirs := map[string]bool{}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		target, err := l.file(name)
		if err != nil {
			return err
		}
		if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return localError("delete", target, err)
		}
		dirs[filepath.Dir(target)] = true
	}
	for dir := range dirs {
		kept, err := l.removeEmpty(dir)
		if err == nil {
			err = syncDir(kept)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return localError("delete from", dir, err)
		}
	}
	return nil
}

// removeEmpty removes dir and the directories above it as long as they are empty, and returns
// the first one that is not. It keeps directories that existed before this storage.
func (l *Local) removeEmpty(dir string) (string, error) {
	l.mu.Lock()
	kept := l.kept
	l.mu.Unlock()
	if kept == "" {
		kept = l.root
	}
	for dir != kept {
		l.mu.Lock()
		err := os.Remove(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			delete(l.durable, dir)
		}
		l.mu.Unlock()
		if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) {
			return dir, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return dir, err
		}
		dir = filepath.Dir(dir)
	}
	return dir, nil
}

// Clean implements [Storage].
func (l *Local) Clean(ctx context.Context, dir string, before time.Time) (int, error) {
	top := l.root
	if dir != "" {
		var err error
		if top, err = l.file(strings.TrimSuffix(dir, "/")); err != nil {
			return 0, err
		}
	}
	removed, at := 0, top
	err := filepath.WalkDir(top, func(name string, e fs.DirEntry, err error) error {
		at = name
		if err == nil {
			err = ctx.Err()
		}
		if errors.Is(err, fs.ErrNotExist) || err == nil && (e.IsDir() || !strings.HasPrefix(e.Name(), tempPrefix)) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.ModTime().Before(before) {
			err = os.Remove(name)
			if err == nil {
				removed++
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return removed, localError("clean", at, err)
	}
	return removed, nil
}

// An appender is a storage that can append to an object. It stores a journal as one growing
// file; others store it as a series of small objects.
type appender interface {
	appendTo(name string) (appendFile, error)
}

// appendFile is a file that grows. Append returns when data is durable.
type appendFile interface {
	Append(data []byte) error
	Close() error
}

func (l *Local) appendTo(name string) (appendFile, error) {
	target, err := l.file(name)
	if err != nil {
		return nil, err
	}
	if err := l.mkdir(filepath.Dir(target)); err != nil {
		return nil, localError("create directory of", target, err)
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, localError("create", target, err)
	}
	if err := syncDir(filepath.Dir(target)); err != nil {
		return nil, errors.Join(localError("flush directory of", target, err), f.Close())
	}
	return localAppend{f}, nil
}

type localAppend struct{ f *os.File }

func (a localAppend) Append(data []byte) error {
	if _, err := a.f.Write(data); err != nil {
		return localError("append to", a.f.Name(), err)
	}
	if err := a.f.Sync(); err != nil {
		return localError("flush", a.f.Name(), err)
	}
	return nil
}

func (a localAppend) Close() error { return a.f.Close() }

// localError returns an [*Error] with a hint for the operator.
func localError(op, place string, err error) error {
	// Errors of the os package repeat operation and path: keep only the cause.
	if cause := (*fs.PathError)(nil); errors.As(err, &cause) && errors.Is(err, cause.Err) && unjoined(err) {
		err = cause.Err
	}
	e := &Error{Op: op, Place: place, Err: err}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.Err = kindError{ErrNotExist, err}
	case errors.Is(err, fs.ErrExist):
		e.Err = kindError{ErrExist, err}
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		e.Err, e.Hint = kindError{ErrFull, err}, "make room"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		e.Err, e.Hint = kindError{ErrDenied, err}, "check the owner and mode of the directory"
	}
	if cause := (*Error)(nil); errors.As(err, &cause) && cause.Hint != "" {
		e.Hint = "" // the cause has it
	}
	return e
}

// unjoined reports whether err is a single chain of wrapped errors, so that its innermost error
// has the cause.
func unjoined(err error) bool {
	_, joined := err.(interface{ Unwrap() []error })
	return !joined
}

// kindError is an error with the system's text that also matches one of this package's
// sentinels.
type kindError struct{ kind, err error }

func (k kindError) Error() string   { return k.err.Error() }
func (k kindError) Unwrap() []error { return []error{k.kind, k.err} }
