// Package backup has the options and the result of a backup of any engine. The packages below
// it, one for each engine, write the archive.
//
//	postgres.Run(ctx, options, writer) (*Result, error)
//
// Compression, encryption, rate limit and resuming are options of the archive
// (archive.Options): Run gets a writer that has them.
package backup

import (
	"errors"
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
)

// Options say what to back up and how. The zero value, with a DSN, backs up one whole database.
type Options struct {
	// DSN is the connection string of the server. Required.
	DSN string

	// Cluster backs up all databases of the server that allow connections, and the objects
	// outside of databases: roles, tablespaces, accounts. Default: false, only the database of
	// the DSN.
	Cluster bool

	// Databases restricts Cluster to these. Default: all.
	Databases []string

	// Filter selects tables. Default: all.
	Filter bulk.Filter

	// SchemaOnly leaves out all rows, sequence values and large objects. Default: false.
	SchemaOnly bool

	// NoUnlogged leaves out the rows of unlogged tables. Default: false.
	NoUnlogged bool

	// NoLargeObjects leaves out large objects. They are also left out if Filter selects schemas
	// or tables, as in pg_dump. Default: false.
	NoLargeObjects bool

	// NoGlobals leaves roles and tablespaces out of a Cluster. Default: false.
	NoGlobals bool

	// NoRolePasswords leaves out the passwords of roles, which only a superuser can read.
	// Default: false.
	NoRolePasswords bool

	// Binary stores rows in the engine's binary format, which is cheaper for the server, but
	// can be restored only into the same major version. Tables with values that have a meaning
	// only in this database, such as OIDs of types, are stored as text anyway. Default: false,
	// text.
	Binary bool

	// Inserts stores rows as INSERT statements instead of the text format of LOAD DATA, for
	// accounts that may not use LOAD DATA LOCAL at the restore. MySQL and MariaDB only.
	// Default: false.
	Inserts bool

	// NoLockTables does not lock non-transactional tables against writes until they are copied:
	// their rows may then be from different moments, and the manifest says so. MySQL and
	// MariaDB only. Default: false.
	NoLockTables bool

	// Checksums computes a checksum of the rows of each table, so that a restored table can be
	// compared with it. Default: false.
	Checksums bool

	// Deferrable takes a SERIALIZABLE DEFERRABLE snapshot: it waits until no concurrent
	// serializable transaction can cause an anomaly in it. PostgreSQL only. Default: false.
	Deferrable bool

	// Profile says how much of the machine to use. Default: bulk.Recommend.
	Profile bulk.Profile

	// Jobs is how many tables, or ranges of them, are read concurrently in one database, each
	// over a connection of its own. Default: that of Profile.
	Jobs int

	// Adapt lets the number of jobs follow the throughput of server and storage, beginning with
	// Jobs. Default: the number is fixed.
	Adapt bulk.Adapt

	// ClusterParallelism is how many databases are backed up concurrently; they share Jobs.
	// Default: that of Profile.
	ClusterParallelism int

	// ChunkBytes is about how much of a table's size on disk goes into one chunk, in bytes:
	// tables larger than one and a half times this are split. Default: half of what each of the
	// Jobs has to read, but at least 8 and at most 128 MiB; see [Options.ChunkFor].
	ChunkBytes int64

	// LockWait is how long to wait for a lock on a table. Default: a minute. Negative: without
	// limit.
	LockWait time.Duration

	// TempDir is the directory for temporary files with definitions. Default: os.TempDir().
	TempDir string

	// Settings are written to the manifest: the flags of a command line, for example, without
	// secrets. Default: none.
	Settings map[string]string

	// Progress counts what is done. Default: nil, progress is not counted.
	Progress *bulk.Progress
}

// Defaults.
const (
	LeastChunkBytes = 8 << 20
	MostChunkBytes  = 128 << 20
	DefaultLockWait = time.Minute
	// MinChunkBytes prevents millions of files after a typing error.
	MinChunkBytes = 64 << 10
)

// WithDefaults returns the options with defaults filled in.
func (o Options) WithDefaults() Options {
	if o.Profile.Jobs == 0 {
		o.Profile = bulk.Recommend(bulk.ThisMachine())
	}
	if o.Jobs == 0 {
		o.Jobs = o.Profile.Jobs
	}
	o.Jobs = o.Adapt.Start(o.Jobs)
	if o.ClusterParallelism == 0 {
		o.ClusterParallelism = max(1, o.Profile.Databases)
	}
	if o.LockWait == 0 {
		o.LockWait = DefaultLockWait
	}
	return o
}

// ChunkFor returns about how much of a table goes into one chunk, in bytes, if total bytes on
// disk are backed up. Large tables are split so that the other workers do not wait for the one
// that reads the largest table; if there are many tables, none exceeds its share.
func (o Options) ChunkFor(total int64) int64 {
	if o.ChunkBytes != 0 {
		return o.ChunkBytes
	}
	return min(max(total/int64(2*max(1, o.Jobs)), LeastChunkBytes), MostChunkBytes)
}

// Partial reports whether a part of the database or the cluster is left out, so that the backup
// does not replace a whole one.
func (o Options) Partial() bool {
	return !o.Filter.Empty() || o.SchemaOnly || o.NoUnlogged || o.NoLargeObjects || len(o.Databases) > 0 || o.NoGlobals && o.Cluster
}

// Validate returns an error that names the invalid flag.
func (o Options) Validate() error {
	switch {
	case o.DSN == "":
		return errors.New("no DSN: it says which server to back up")
	case o.Jobs < 1:
		return fmt.Errorf("--jobs %d: at least 1 is needed", o.Jobs)
	case o.Adapt.Validate() != nil:
		return o.Adapt.Validate()
	case o.ClusterParallelism < 1:
		return fmt.Errorf("--cluster-parallelism %d: at least 1 is needed", o.ClusterParallelism)
	case o.ChunkBytes != 0 && o.ChunkBytes < MinChunkBytes:
		return fmt.Errorf("--chunk-size %d: at least %d bytes are needed", o.ChunkBytes, MinChunkBytes)
	case len(o.Databases) > 0 && !o.Cluster:
		return errors.New("--database: only a cluster has several; without --cluster the DSN names the database")
	}
	_, err := o.Filter.Compile()
	return err
}

// TableStats are the figures of one table.
type TableStats struct {
	Database string `json:"database"`         // of the table
	Schema   string `json:"schema,omitempty"` // of the table
	Table    string `json:"table"`            // its name
	Chunks   int    `json:"chunks"`           // number of its chunks
	Rows     int64  `json:"rows"`             // number of its rows
	Bytes    int64  `json:"bytes"`            // before compression

	// Busy is the time spent on its chunks, summed over concurrent workers.
	Busy time.Duration `json:"busy_ns"`

	// Kept are chunks from an earlier, interrupted run that are still valid.
	Kept int `json:"kept,omitempty"`
}

// Rate returns bytes per second of Busy.
func (t TableStats) Rate() float64 {
	if t.Busy <= 0 {
		return 0
	}
	return float64(t.Bytes) / t.Busy.Seconds()
}

// Result is the result of a backup.
type Result struct {
	// Manifest is the manifest of the archive, with its warnings.
	Manifest *archive.Manifest

	// Tables are in the order of the manifest.
	Tables []TableStats

	Elapsed time.Duration

	// LockHeld is how long all writes were blocked at the start, with MySQL and MariaDB, and
	// Lock by which lock; zero if they were not.
	LockHeld time.Duration
	Lock     string

	// Workers are the metrics of the workers that read rows: for each database, or for all
	// together if they share their workers.
	Workers []bulk.WorkerPoolStats

	// Pipeline says which stages worked and which waited.
	Pipeline archive.Pipeline
}
