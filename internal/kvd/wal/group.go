package wal

import (
	"errors"
	"fmt"
	"io/fs"
)

const groupName = "group"

const maxGroup = 4 << 10 // bytes of the file

// GroupHint is what an operator does about a file that cannot be read.
const GroupHint = "remove this file, which is only a safeguard: the replica finds out again which group it belongs to"

// groupFile says which group of replicas the directory belongs to. It is not in the identity,
// since versions that know nothing of groups take no other fields there.
type groupFile struct {
	Format   uint32 `json:"format"`
	Group    string `json:"group"`
	Checksum uint32 `json:"checksum"`
}

func (f *groupFile) seal() (format, checksum *uint32) { return &f.Format, &f.Checksum }

// Group returns what SetGroup has noted last, "" if it never has.
func (l *Log) Group() (string, error) {
	var f groupFile
	err := readSmall(l.disk, groupName, maxGroup, &f)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	var bad *CorruptError
	var other *VersionError
	switch {
	case errors.As(err, &bad):
		bad.Hint = GroupHint
	case errors.As(err, &other):
		return "", fmt.Errorf("%w, or %s", err, GroupHint)
	}
	return f.Group, err
}

// SetGroup notes, durably, which group of replicas the directory belongs to. The log does not
// look at it. One goroutine at a time calls it, before Close.
func (l *Log) SetGroup(group string) error {
	return writeSmall(l.disk, groupName, &groupFile{Group: group})
}
