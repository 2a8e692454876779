package wal

import (
	"errors"
	"fmt"
	"syscall"
)

// CorruptError says that flushed bytes have changed. The replica must neither vote nor
// acknowledge anything with what is left: it has lost something that other replicas rely on.
type CorruptError struct {
	File   string // in the log's directory
	Offset int64  // in bytes, where the damage was found
	What   string // what is wrong there
	Hint   string // what to do about it
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s is corrupt at offset %d: %s; %s", e.File, e.Offset, e.What, e.Hint)
}

// replaceHint says what an operator can do about a directory that is damaged: the other
// replicas have all data.
const replaceHint = "replace this member by one with a new number and an empty directory (weir kv member replace)"

func corrupt(file string, offset int64, format string, args ...any) *CorruptError {
	return &CorruptError{File: file, Offset: offset, What: fmt.Sprintf(format, args...), Hint: replaceHint}
}

// LockedError says that another process uses the directory.
type LockedError struct {
	Dir string
	PID int // of the holder, 0 if unknown
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
	Want  string // of the caller
	Have  string // of the directory
}

func (e *IdentityError) Error() string {
	return fmt.Sprintf("the directory belongs to %s %s, not to %s; use the directory of this replica", e.Field, e.Have, e.Want)
}

// VersionError says that a file has the format of another version.
type VersionError struct {
	File    string
	Version uint32
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("%s has format version %d, this program reads version %d; use the version of weir that wrote it", e.File, e.Version, formatVersion)
}

// ErrClosed is returned by every call after [Log.Close].
var ErrClosed = errors.New("the log is closed")

// withSpaceHint adds a hint to the error of a full disk.
func withSpaceHint(err error) error {
	if isFull(err) {
		return fmt.Errorf("%w; free some space, nothing that was flushed is lost", err)
	}
	return err
}

// isFull reports whether an error says that the disk or a quota is full.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
