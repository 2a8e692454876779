package archive

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"
)

// A Storage stores named objects. Names are slash-separated paths relative to its root. It is
// safe for concurrent use. Errors about an object that does not exist match [ErrNotExist];
// errors that an operator can do something about are of type [*Error].
//
// An implementation does its own retries, for a limited time: an error that it returns is
// final.
type Storage interface {
	// Create begins an object of unknown size. Nothing is visible under its name before Commit;
	// Commit replaces an existing object. Memory use is bounded.
	Create(ctx context.Context, name string) (ObjectWriter, error)

	// Open reads an object from offset bytes on.
	Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error)

	// Stat describes an object.
	Stat(ctx context.Context, name string) (ObjectInfo, error)

	// List yields the content of the directory dir ("" is the root), in the order of names if
	// the storage has one. With deep it yields all objects at any depth, otherwise the objects
	// directly in dir and its subdirectories, whose names end with a slash. A directory that
	// does not exist is empty.
	List(ctx context.Context, dir string, deep bool) iter.Seq2[ObjectInfo, error]

	// Put stores a small object atomically and replaces an existing one.
	Put(ctx context.Context, name string, data []byte) error

	// PutNew is Put for a name that must not exist: of several callers exactly one succeeds,
	// and the others get [ErrExist].
	PutNew(ctx context.Context, name string, data []byte) error

	// Delete removes objects. An object that does not exist is no error.
	Delete(ctx context.Context, names ...string) error

	// Clean removes invisible leftovers of dead writers below dir: unfinished uploads and
	// temporary files last modified before the given time. It returns their number.
	Clean(ctx context.Context, dir string, before time.Time) (int, error)

	// String returns the location as an operator would write it, without secrets.
	String() string
}

// An ObjectWriter writes one object. It is used by one goroutine. Exactly one of Commit and
// Abort is called; Abort after Commit does nothing.
type ObjectWriter interface {
	io.Writer

	// Commit makes the object durable and visible. It verifies that the stored object has the
	// length that was written, and its hash if the storage does not guarantee that.
	Commit() (ObjectInfo, error)

	// Abort removes what was written.
	Abort() error
}

// ObjectInfo describes an object.
type ObjectInfo struct {
	// Name is relative to the storage's root. The name of a directory ends with a slash.
	Name string

	// Size is in bytes; 0 for a directory.
	Size int64

	// Modified is by the storage's clock; zero for a directory.
	Modified time.Time

	// Segments is the number of segments into which a tar stream cut the object; 0 elsewhere.
	Segments int
}

var (
	// ErrNotExist says that an object or backup does not exist.
	ErrNotExist = errors.New("does not exist")

	// ErrNoBackup says that a place has no complete backup that matches the request.
	ErrNoBackup = errors.New("there is no complete backup")

	// ErrAmbiguous says that a place has backups of several labels or servers, and the request
	// does not say which is meant.
	ErrAmbiguous = errors.New("there are backups of several labels or servers")

	// ErrExist says that a name is taken.
	ErrExist = errors.New("exists already")

	// ErrFull says that there is no room left.
	ErrFull = errors.New("no space left")

	// ErrDenied says that permissions or credentials are missing.
	ErrDenied = errors.New("access denied")
)

// An Error is a failed operation on a place. It has a hint about what to do.
type Error struct {
	// Op is the operation, such as "open repository" or "upload part 3".
	Op string

	// Place is the object of the operation: a file, or bucket and key.
	Place string

	// Err is the cause.
	Err error

	// Hint says what to do, in a sentence; empty if there is nothing to say.
	Hint string
}

// Error returns the operation, the place, the cause and the hint in one line.
func (e *Error) Error() string {
	s := e.Op + " " + e.Place + ": " + e.Err.Error()
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
