package wal

import (
	"errors"
	"fmt"
	"syscall"
)

// CorruptError says that flushed bytes are not what they were. The replica must
// not vote or acknowledge anything with what is left: it has forgotten
// something that others rely on.
type CorruptError struct {
	File   string // in the log's directory
	Offset int64  // in bytes, where the damage shows
	What   string // what is wrong there
	Hint   string // what to do about it
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s is corrupt at offset %d: %s; %s", e.File, e.Offset, e.What, e.Hint)
}

// replaceHint is what an operator does about a directory that cannot be
// trusted: the other replicas have everything.
const replaceHint = "replace this member by one with a new number and an empty directory (weir kv member replace)"

func corrupt(file string, offset int64, format string, args ...any) *CorruptError {
	return &CorruptError{File: file, Offset: offset, What: fmt.Sprintf(format, args...), Hint: replaceHint}
}

// LockedError says that another process uses the directory.
type LockedError struct {
	Dir string
	PID int // of the holder, 0 if it is not known
}

func (e *LockedError) Error() string {
	holder := "another process"
	if e.PID != 0 {
		holder = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("lock %s: %s uses it; stop that one or use another directory", e.Dir, holder)
}

// IdentityError says that the directory belongs to another cluster or replica.
type IdentityError struct {
	Field string // "cluster" or "replica"
	Want  string // what the caller is
	Have  string // what the directory says
}

func (e *IdentityError) Error() string {
	return fmt.Sprintf("the directory belongs to %s %s, not to %s; use the directory of this replica", e.Field, e.Have, e.Want)
}

// VersionError says that a file was written in a format of another version.
type VersionError struct {
	File    string
	Version uint32
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("%s has format version %d, this program reads version %d; use the version of weir that wrote it", e.File, e.Version, formatVersion)
}

// ErrClosed is returned by every call after [Log.Close].
var ErrClosed = errors.New("the log is closed")

// withSpaceHint adds what to do to an error of a full disk.
func withSpaceHint(err error) error {
	if isFull(err) {
		return fmt.Errorf("%w; free some space, nothing that was flushed is lost", err)
	}
	return err
}

// isFull reports whether an error says that the disk is full, or a quota of it.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
