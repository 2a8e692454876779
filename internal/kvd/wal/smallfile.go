package wal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// A smallFile is stored as a line of JSON. It is a pointer to a struct whose first field is the
// format and whose last field is a checksum: the CRC-32C of the same line with checksum 0.
type smallFile interface {
	seal() (format, checksum *uint32)
}

// tempSuffix is the suffix of a file that is being written.
const tempSuffix = ".tmp"

// encodeSmall sets the format and checksum of a file and returns its line.
func encodeSmall(f smallFile) ([]byte, error) {
	format, sum := f.seal()
	*format, *sum = formatVersion, 0
	b, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	*sum = checksum(0, b)
	b, err = json.Marshal(f)
	return append(b, '\n'), err
}

// decodeSmall decodes the line of the file name into f.
func decodeSmall(name string, b []byte, f smallFile) error {
	if err := json.Unmarshal(b, f); err != nil {
		return corrupt(name, 0, "it cannot be read: %v", err)
	}
	if format, _ := f.seal(); *format != formatVersion {
		return &VersionError{File: name, Version: *format}
	}
	if again, err := encodeSmall(f); err != nil || string(again) != string(b) {
		return corrupt(name, 0, "its checksum does not match")
	}
	return nil
}

// readSmall reads the file name, of at most limit bytes, into f.
func readSmall(disk Disk, name string, limit int64, f smallFile) error {
	in, err := disk.Open(name, false)
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	b, err := io.ReadAll(io.NewSectionReader(in, 0, limit))
	if err := errors.Join(err, in.Close()); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return decodeSmall(name, b, f)
}

// writeSmall replaces the file name durably: after a crash it is the old or the new one.
func writeSmall(disk Disk, name string, f smallFile) error {
	b, err := encodeSmall(f)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	if err := writeFile(disk, name+tempSuffix, b); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := disk.Rename(name+tempSuffix, name); err != nil {
		return fmt.Errorf("name %s: %w", name, err)
	}
	if err := disk.SyncDir(); err != nil {
		return fmt.Errorf("flush directory: %w", err)
	}
	return nil
}

// writeFile creates a durable file with contents b.
func writeFile(disk Disk, name string, b []byte) error {
	f, err := disk.Create(name)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(b, 0); err != nil {
		return errors.Join(withSpaceHint(err), f.Close())
	}
	return errors.Join(f.Sync(), f.Close())
}
