package archive

import (
	"context"
	"fmt"
	"os"
	"strings"
)

// A Repository is a place that holds backups, each in a directory named by its id.
type Repository struct {
	storage Storage
}

// OpenRepository opens the repository at location: a directory, which need not
// exist yet, or s3://bucket/prefix?endpoint=URL&region=NAME. Credentials for S3
// come from the environment or the files that AWS's own tools read.
func OpenRepository(ctx context.Context, location string) (*Repository, error) {
	s, err := OpenStorage(ctx, location)
	if err != nil {
		return nil, err
	}
	return &Repository{storage: s}, nil
}

// OpenExisting opens a repository that must be there: to find nothing where
// nothing is would hide a mistyped name, or a disk that is not mounted.
func OpenExisting(ctx context.Context, location string) (*Repository, error) {
	r, err := OpenRepository(ctx, location)
	if err != nil {
		return nil, err
	}
	return r, r.exists()
}

// exists returns an error if the place is not there. A bucket says so by itself.
func (r *Repository) exists() error {
	l, ok := r.storage.(*Local)
	if !ok {
		return nil
	}
	if _, err := os.Stat(l.root); err != nil {
		return localError("open", l.root, err)
	}
	return nil
}

// NewRepository returns a repository in a storage.
func NewRepository(s Storage) *Repository { return &Repository{storage: s} }

// Storage returns the repository's storage.
func (r *Repository) Storage() Storage { return r.storage }

// String is the repository's location, without secrets.
func (r *Repository) String() string { return r.storage.String() }

// OpenStorage opens a place as [OpenRepository] does.
func OpenStorage(ctx context.Context, location string) (Storage, error) {
	if strings.HasPrefix(location, "s3://") {
		return openS3(ctx, location, os.Getenv)
	}
	path, isFile := strings.CutPrefix(location, "file://")
	if scheme, _, ok := strings.Cut(path, "://"); ok && !isFile && !strings.ContainsRune(scheme, '/') {
		// As a directory it would be made here, and who named a bucket would believe
		// the backup to be there.
		return nil, fmt.Errorf("open %s://...: weir keeps backups in a directory or in s3://BUCKET/PREFIX, and knows no %s://", scheme, scheme)
	}
	return NewLocal(path)
}

// The names that a backup uses beside its chunks.
const (
	manifestName = "manifest.json"
	sumsName     = "SHA256SUMS"
	keyName      = "key.age"
	runPrefix    = "run-"
	logPrefix    = "journal-"

	// removedName marks a backup whose deletion has begun. It is deleted last.
	removedName = logPrefix + "removed"
)

// reserved reports whether a name at the top of a backup is not for chunks.
func reserved(name string) bool {
	return name == manifestName || name == sumsName || name == keyName ||
		strings.HasPrefix(name, runPrefix) || strings.HasPrefix(name, logPrefix)
}
