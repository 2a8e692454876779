package wal

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// LogID tells the logs of all replicas and of all their lives apart.
type LogID [16]byte

// String is the id in hexadecimal.
func (id LogID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText implements encoding.TextMarshaler.
func (id LogID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (id *LogID) UnmarshalText(b []byte) error {
	if hex.DecodedLen(len(b)) != len(id) {
		return errors.New("a log id has 32 hexadecimal digits")
	}
	_, err := hex.Decode(id[:], b)
	return err
}

// Identity says whose directory it is.
type Identity struct {
	Cluster string `json:"cluster"` // name of the cluster
	Replica uint64 `json:"replica"` // id of the replica
	Log     LogID  `json:"log"`     // drawn when the directory is first used
	// First is who made the cluster, as the replica was told when the directory
	// was first used; the log goes on from there, so it is never told again.
	// The log does not look at it.
	First string `json:"first,omitempty"`
}

const (
	identityName = "identity"
	tempSuffix   = ".tmp"
)

// identityFile is how an Identity is kept: a line that a person can read.
type identityFile struct {
	Format uint32 `json:"format"`
	Identity
	Checksum uint32 `json:"checksum"` // CRC-32C of the same line with checksum 0
}

func (f identityFile) sum() (uint32, error) {
	f.Checksum = 0
	b, err := json.Marshal(f)
	return checksum(0, b), err
}

// writeIdentity makes the identity durable. It is the last thing that is
// written into a new directory: who finds it knows that the log was there.
func writeIdentity(disk Disk, id Identity) error {
	f := identityFile{Format: formatVersion, Identity: id}
	var err error
	if f.Checksum, err = f.sum(); err != nil {
		return fmt.Errorf("encode identity: %w", err)
	}
	b, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode identity: %w", err)
	}
	if err := writeFile(disk, identityName+tempSuffix, append(b, '\n')); err != nil {
		return fmt.Errorf("write identity: %w", err)
	}
	if err := disk.Rename(identityName+tempSuffix, identityName); err != nil {
		return fmt.Errorf("name identity: %w", err)
	}
	if err := disk.SyncDir(); err != nil {
		return fmt.Errorf("flush directory: %w", err)
	}
	return nil
}

// writeFile makes a durable file of b.
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

// maxIdentity bounds the size of an identity file.
const maxIdentity = 64 << 10

func readIdentity(disk Disk) (Identity, error) {
	f, err := disk.Open(identityName, false)
	if err != nil {
		return Identity{}, fmt.Errorf("open identity: %w", err)
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, maxIdentity))
	if err := errors.Join(err, f.Close()); err != nil {
		return Identity{}, fmt.Errorf("read identity: %w", err)
	}
	return decodeIdentity(b)
}

func decodeIdentity(b []byte) (Identity, error) {
	var file identityFile
	if err := json.Unmarshal(b, &file); err != nil {
		return Identity{}, corrupt(identityName, 0, "it cannot be read: %v", err)
	}
	if file.Format != formatVersion {
		return Identity{}, &VersionError{File: identityName, Version: file.Format}
	}
	sum, err := file.sum()
	if err != nil {
		return Identity{}, fmt.Errorf("encode identity: %w", err)
	}
	if sum != file.Checksum {
		return Identity{}, corrupt(identityName, 0, "its checksum does not match")
	}
	return file.Identity, nil
}

// match reports whether the directory of have is want's.
func (have Identity) match(want Identity) error {
	if have.Cluster != want.Cluster {
		return &IdentityError{Field: "cluster", Want: strconv.Quote(want.Cluster), Have: strconv.Quote(have.Cluster)}
	}
	if have.Replica != want.Replica {
		return &IdentityError{Field: "replica", Want: strconv.FormatUint(want.Replica, 10), Have: strconv.FormatUint(have.Replica, 10)}
	}
	return nil
}
