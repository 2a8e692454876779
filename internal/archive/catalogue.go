package archive

import (
	"context"
	"errors"
	"time"
)

// A State is how a backup in a repository stands.
type State string

// The states.
const (
	Complete   State = "complete"
	Running    State = "running"    // no manifest, and a writer renews its lock
	Incomplete State = "incomplete" // no manifest, and nobody writes it
	Damaged    State = "damaged"    // a manifest that cannot be read
)

// An Entry is one backup in a catalogue.
type Entry struct {
	ID    string `json:"id"`
	State State  `json:"state"`

	// Reason says why a backup is not complete.
	Reason string `json:"reason,omitempty"`

	// Summary is the head of the manifest; zero unless complete.
	Summary Summary `json:"summary,omitzero"`

	// Bytes is what the backup occupies in the storage: for a complete one by its
	// manifest, otherwise by looking.
	Bytes int64 `json:"bytes"`

	// Time is when the backup started, or, where nothing tells, when its youngest
	// object was written.
	Time time.Time `json:"time"`

	// Touched is when an unfinished backup was last worked on; zero for a complete one.
	Touched time.Time `json:"touched,omitzero"`
}

// List returns the backups of a repository, oldest first.
func List(ctx context.Context, repo *Repository, now time.Time) ([]Entry, error) {
	return nil, errors.ErrUnsupported
}

// Prune deletes the backups that plan does not keep, the manifest of each first,
// so that a backup whose deletion was cut short is incomplete and never half a
// backup that looks whole. It returns the ids that are gone.
func Prune(ctx context.Context, repo *Repository, plan []Decision) ([]string, error) {
	return nil, errors.ErrUnsupported
}

// RemoveOrphans deletes unfinished backups that nobody has worked on for grace,
// and what dead writers left elsewhere. It returns the ids of the backups.
func RemoveOrphans(ctx context.Context, repo *Repository, grace time.Duration, now time.Time) ([]string, error) {
	return nil, errors.ErrUnsupported
}
