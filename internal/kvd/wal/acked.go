package wal

import (
	"errors"
	"fmt"
	"io/fs"
)

const ackedName = "acked"

// ackedHint says what an operator can do about a file that cannot be read.
const ackedHint = "remove this file, which is only a safeguard: the replica starts, and does not notice an older copy of another replica's directory that it meets before it has led again (docs/kv-operating.md, A disk is lost or damaged)"

// ackedFile has, for each other replica, the last entry that it was known to have on its disk.
type ackedFile struct {
	Format   uint32            `json:"format"`
	Acked    map[uint64]uint64 `json:"acked"`
	Checksum uint32            `json:"checksum"`
}

func (f *ackedFile) seal() (format, checksum *uint32) { return &f.Format, &f.Checksum }

// Acked returns what was last passed to NoteAcked, nil if nothing was.
func (l *Log) Acked() (map[uint64]uint64, error) {
	var f ackedFile
	err := readSmall(l.disk, ackedName, maxPeers, &f)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var bad *CorruptError
	var other *VersionError
	switch {
	case errors.As(err, &bad):
		bad.Hint = ackedHint
	case errors.As(err, &other):
		return nil, fmt.Errorf("%w, or %s", err, ackedHint)
	}
	return f.Acked, err
}

// NoteAcked stores durably, for each other replica, the last entry that it is known to have on
// its disk. It must be called by one goroutine at a time, and not after Close.
func (l *Log) NoteAcked(acked map[uint64]uint64) error {
	return writeSmall(l.disk, ackedName, &ackedFile{Acked: acked})
}
