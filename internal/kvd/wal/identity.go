package wal

import (
	"encoding/hex"
	"errors"
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
	// was first used; the log goes on from there, so it is never told again
	// once the log holds anything. The log does not look at it.
	First string `json:"first,omitempty"`
}

const (
	identityName = "identity"
	maxIdentity  = 64 << 10 // bytes of the file
)

// identityFile is how an Identity is kept.
type identityFile struct {
	Format uint32 `json:"format"`
	Identity
	Checksum uint32 `json:"checksum"`
}

func (f *identityFile) seal() (format, checksum *uint32) { return &f.Format, &f.Checksum }

// writeIdentity makes the identity durable. It is the last thing that is
// written into a new directory: who finds it knows that the log was there.
func writeIdentity(disk Disk, id Identity) error {
	return writeSmall(disk, identityName, &identityFile{Identity: id})
}

// SetFirst replaces Identity.First, durably: the log holds nothing that goes by it yet.
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
