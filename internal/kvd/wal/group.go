package wal

import (
	"errors"
	"fmt"
	"io/fs"
)

const groupName = "group"

const maxGroup = 4 << 10 // bytes of the file

// GroupHint says what an operator can do about a file that cannot be read.
const GroupHint = "remove this file, which is only a safeguard: the replica finds out again which group it belongs to"

// groupFile has the group of replicas that the directory belongs to. It is separate from the
// identity because versions without groups reject other fields there.
type groupFile struct {
	Format   uint32 `json:"format"`
	Group    string `json:"group"`
	Checksum uint32 `json:"checksum"`
}

func (f *groupFile) seal() (format, checksum *uint32) { return &f.Format, &f.Checksum }

// Group returns the group that was last passed to SetGroup, "" if there was none.
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

// SetGroup stores durably the group of replicas that the directory belongs to. The log does not
// interpret it. It must be called by one goroutine at a time, and not after Close.
func (l *Log) SetGroup(group string) error {
	return writeSmall(l.disk, groupName, &groupFile{Group: group})
}
