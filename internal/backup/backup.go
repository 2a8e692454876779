// Package backup holds the options and the result of a backup, for every engine. The
// packages below it, one for each engine, write the archive.
//
//	postgres.Run(ctx, options, writer) (*Result, error)
//
// Compression, encryption, rate limit and resuming are the archive's own options
// (archive.Options): a Run gets a writer that has them.
package backup

import (
	"errors"
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
)

// Options is what is asked for. Its zero value, with a DSN, backs up one whole
// database.
type Options struct {
	// DSN says where the server is and who to be there. Required.
	DSN string

	// Cluster backs up all databases of the server that take connections, and
	// what belongs to none of them: roles, tablespaces, accounts. Default:
	// false, the database of the DSN.
	Cluster bool

	// Databases restricts Cluster to these. Default: all.
	Databases []string

	// Filter says which tables are meant. Default: all.
	Filter bulk.Filter

	// SchemaOnly leaves out all rows, values of sequences and large objects.
	// Default: false.
	SchemaOnly bool

	// NoUnlogged leaves out the rows of unlogged tables. Default: false.
	NoUnlogged bool

	// NoLargeObjects leaves out large objects. They are left out, too, when
	// Filter selects schemas or tables, as in pg_dump. Default: false.
	NoLargeObjects bool

	// NoGlobals leaves roles and tablespaces out of a Cluster. Default: false.
	NoGlobals bool

	// NoRolePasswords leaves out the passwords of roles, which only a superuser
	// can read. Default: false.
	NoRolePasswords bool

	// Binary asks for rows in the engine's binary format, which is cheaper for
	// the server and readable by the same major version only. Tables whose values
	// mean something in this one database only, such as numbers of types, are
	// text all the same. Default: false, text.
	Binary bool

	// Inserts keeps rows as INSERT statements instead of the text that LOAD DATA
	// reads, of MySQL and MariaDB, for those who may not use LOAD DATA LOCAL.
	// Default: false.
	Inserts bool

	// NoLockTables does not lock tables that know no transactions until they are
	// copied, when nobody could write to them: their rows may then be of several
	// moments, and the manifest says so. Of MySQL and MariaDB only. Default: false.
	NoLockTables bool

	// Checksums computes a checksum over the rows of each table, so that a
	// restored table can be compared with it. Default: false.
	Checksums bool

	// Deferrable waits for a moment at which no concurrent serializable
	// transaction can make the snapshot show something impossible. Default: false.
	Deferrable bool

	// Profile says how much of the machine to use. Default: bulk.Recommend.
	Profile bulk.Profile

	// Jobs is how many tables, or ranges of them, are read side by side in one
	// database, each over a connection of its own. Default: that of Profile.
	Jobs int

	// Adapt has the number of Jobs follow what the server and the storage give, from
	// Jobs on. Default: the number does not change.
	Adapt bulk.Adapt

	// ClusterParallelism is how many databases are backed up side by side; they
	// share Jobs. Default: that of Profile.
	ClusterParallelism int

	// ChunkBytes is about how much of a table's size on disk makes one chunk:
	// tables of more than one and a half of it are split. Default: half of what
	// each of the Jobs has to read, but 8 to 128 MiB: see [Options.ChunkFor].
	ChunkBytes int64

	// LockWait is how long to wait for a lock on a table before giving up.
	// Default: a minute. Negative: for ever.
	LockWait time.Duration

	// TempDir is where definitions are kept while they are read. Default:
	// os.TempDir().
	TempDir string

	// Settings are noted in the manifest, such as the flags of a command line.
	// No secrets. Default: none.
	Settings map[string]string

	// Progress counts what is done. Default: nil, nobody looks.
	Progress *bulk.Progress
}

// Defaults.
const (
	LeastChunkBytes = 8 << 20
	MostChunkBytes  = 128 << 20
	DefaultLockWait = time.Minute
	// MinChunkBytes keeps a typing error from making millions of files.
	MinChunkBytes = 64 << 10
)

// WithDefaults fills in what is left open.
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

// ChunkFor is about how much of a table makes one chunk where so many bytes on disk
// are read in all. The workers would wait for the one that has the largest table,
// were it not split; where there are many tables, none is larger than a share.
func (o Options) ChunkFor(total int64) int64 {
	if o.ChunkBytes != 0 {
		return o.ChunkBytes
	}
	return min(max(total/int64(2*max(1, o.Jobs)), LeastChunkBytes), MostChunkBytes)
}

// Partial reports whether something of the database, or of the cluster, is left
// out, so that the backup does not stand in for a whole one.
func (o Options) Partial() bool {
	return !o.Filter.Empty() || o.SchemaOnly || o.NoUnlogged || o.NoLargeObjects || len(o.Databases) > 0 || o.NoGlobals && o.Cluster
}

// Validate names the flag that is wrong.
func (o Options) Validate() error {
	switch {
	case o.DSN == "":
		return errors.New("no DSN: which server is to be backed up?")
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

// TableStats is what became of one table.
type TableStats struct {
	Database string `json:"database"`         // of the table
	Schema   string `json:"schema,omitempty"` // of the table
	Table    string `json:"table"`            // its name
	Chunks   int    `json:"chunks"`           // number of its chunks
	Rows     int64  `json:"rows"`             // number of its rows
	Bytes    int64  `json:"bytes"`            // plain

	// Busy is the time spent on its chunks, summed over those read side by side.
	Busy time.Duration `json:"busy_ns"`

	// Kept are chunks that an earlier, interrupted run left and that still hold.
	Kept int `json:"kept,omitempty"`
}

// Rate is bytes per second of Busy.
func (t TableStats) Rate() float64 {
	if t.Busy <= 0 {
		return 0
	}
	return float64(t.Bytes) / t.Busy.Seconds()
}

// Result is what a backup reports.
type Result struct {
	// Manifest is what the archive holds, warnings included.
	Manifest *archive.Manifest

	// Tables are in the order of the manifest.
	Tables []TableStats

	Elapsed time.Duration

	// LockHeld is how long everybody's writes were held back at the start, of
	// MySQL and MariaDB, and Lock by what; zero where nothing is.
	LockHeld time.Duration
	Lock     string

	// Workers are the metrics of those that read rows, of each database, or of all
	// where they share their workers.
	Workers []bulk.CrewStats

	// Pipeline says which stages worked and which waited.
	Pipeline archive.Pipeline
}
