package wal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

const ackedName = "acked"

// ackedFile is a line that a person can read: up to which entry other replicas were known
// to have the log on their disks.
type ackedFile struct {
	Format   uint32            `json:"format"`
	Acked    map[uint64]uint64 `json:"acked"`
	Checksum uint32            `json:"checksum"` // CRC-32C of the same line with checksum 0
}

func (f ackedFile) encode() ([]byte, error) {
	f.Checksum = 0
	b, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	f.Checksum = checksum(0, b)
	b, err = json.Marshal(f)
	return append(b, '\n'), err
}

// Acked returns what NoteAcked has noted last; nothing if it never has.
func (l *Log) Acked() (map[uint64]uint64, error) {
	f, err := l.disk.Open(ackedName, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", ackedName, err)
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, maxPeers))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("read %s: %w", ackedName, err)
	}
	var file ackedFile
	if err := json.Unmarshal(b, &file); err != nil {
		return nil, corrupt(ackedName, 0, "it cannot be read: %v", err)
	}
	if file.Format != formatVersion {
		return nil, &VersionError{File: ackedName, Version: file.Format}
	}
	if again, err := file.encode(); err != nil || string(again) != string(b) {
		return nil, corrupt(ackedName, 0, "its checksum does not match")
	}
	return file.Acked, nil
}

// NoteAcked notes, durably, up to which entry each other replica is known to have the log
// on its disk. One goroutine at a time calls it, before Close.
func (l *Log) NoteAcked(acked map[uint64]uint64) error {
	b, err := ackedFile{Format: formatVersion, Acked: acked}.encode()
	if err != nil {
		return fmt.Errorf("encode %s: %w", ackedName, err)
	}
	if err := writeFile(l.disk, ackedName+tempSuffix, b); err != nil {
		return fmt.Errorf("write %s: %w", ackedName, err)
	}
	if err := l.disk.Rename(ackedName+tempSuffix, ackedName); err != nil {
		return fmt.Errorf("name %s: %w", ackedName, err)
	}
	if err := l.disk.SyncDir(); err != nil {
		return fmt.Errorf("flush directory: %w", err)
	}
	return nil
}
