package wal

import (
	"encoding/hex"
	"errors"
	"strconv"
)

// LogID identifies the log of one replica. A new directory gets a new one.
type LogID [16]byte

// String returns the id in hexadecimal.
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

// Identity says which replica a directory belongs to.
type Identity struct {
	Cluster string `json:"cluster"` // name of the cluster
	Replica uint64 `json:"replica"` // id of the replica
	Log     LogID  `json:"log"`     // random, drawn when the directory is first used
	// First describes the first members of the cluster, as configured when the directory was
	// first used. Once the log has entries, the members are those of the log. The log does not
	// interpret it.
	First string `json:"first,omitempty"`
}

const (
	identityName = "identity"
	maxIdentity  = 64 << 10 // bytes of the file
)

// identityFile is the format of an Identity on disk.
type identityFile struct {
	Format uint32 `json:"format"`
	Identity
	Checksum uint32 `json:"checksum"`
}

func (f *identityFile) seal() (format, checksum *uint32) { return &f.Format, &f.Checksum }

// writeIdentity makes the identity durable. It is written last in a new directory: if it
// exists, the log existed.
func writeIdentity(disk Disk, id Identity) error {
	return writeSmall(disk, identityName, &identityFile{Identity: id})
}

// SetFirst replaces Identity.First durably, while the log has nothing that depends on it.
func (l *Log) SetFirst(first string) error {
	id := l.id
	id.First = first
	if err := writeIdentity(l.disk, id); err != nil {
		return err
	}
	l.id = id
	return nil
}

func readIdentity(disk Disk) (Identity, error) {
	var f identityFile
	err := readSmall(disk, identityName, maxIdentity, &f)
	return f.Identity, err
}

// match returns an error unless have is the identity that want describes.
func (have Identity) match(want Identity) error {
	if have.Cluster != want.Cluster {
		return &IdentityError{Field: "cluster", Want: strconv.Quote(want.Cluster), Have: strconv.Quote(have.Cluster)}
	}
	if have.Replica != want.Replica {
		return &IdentityError{Field: "replica", Want: strconv.FormatUint(want.Replica, 10), Have: strconv.FormatUint(have.Replica, 10)}
	}
	return nil
}
