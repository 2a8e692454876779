package archive

import "time"

// Format and FormatVersion identify manifests of this package. A reader reads all versions up
// to its own and refuses later ones, whose meaning it cannot know.
const (
	Format        = "weir-archive"
	FormatVersion = 1
)

// A Manifest describes the content of a backup and proves that it is complete. It names no
// host, user or password: of the source it has only versions and positions. Its fields are in
// the order of the file: the summary, which a catalogue reads, comes first, and the long lists
// come last.
type Manifest struct {
	Summary

	// Options is what was requested for the backup, in the caller's terms: flags and their
	// values, without secrets.
	Options map[string]string `json:"options,omitempty"`

	// Warnings say what deviates from what was requested without making the backup incomplete.
	Warnings []string `json:"warnings,omitempty"`

	// Attributes are further facts that the engine's code needs for a restore.
	Attributes map[string]string `json:"attributes,omitempty"`

	Databases []Database `json:"databases,omitempty"`

	// Chunks lists every chunk, ordered by path. The digest covers the path together with the
	// hash of the content, so two swapped chunks are noticed.
	Chunks []Chunk `json:"chunks"`

	// Digest is the SHA-256, in hexadecimal, of the manifest's bytes with sixty-four zeros in
	// this place. It detects accidents and careless edits; an attacker can compute it.
	Digest string `json:"digest"`
}

// A Summary is the head of a manifest: what lists show and retention needs.
type Summary struct {
	Format  string `json:"format"`  // always weir-archive
	Version int    `json:"version"` // the version of the format
	ID      string `json:"id"`      // the name of the backup

	// Label groups backups of the same source: retention counts within one.
	Label string `json:"label,omitempty"`

	// Weir is the version of weir that wrote it.
	Weir string `json:"weir"`

	Engine Engine `json:"engine"` // postgresql, mysql or mariadb
	Server Server `json:"server"` // the server that was backed up

	// Scope says what the backup covers, such as "database", "cluster" or "base".
	Scope string `json:"scope,omitempty"`

	// Partial says that part of the scope was left out on request: schemas, tables or rows. A
	// partial backup does not replace a whole one.
	Partial bool `json:"partial,omitempty"`

	Started  time.Time `json:"started"`  // when the backup began, by weir's clock
	Finished time.Time `json:"finished"` // when the backup was complete, by weir's clock

	// Position is the state of the source that the backup contains.
	Position Position `json:"position"`

	// Parents are the ids of backups without which this one is useless. Prune never deletes a
	// parent of a backup that it keeps.
	Parents []string `json:"parents,omitempty"`

	// Encryption is nil for a backup that is not encrypted.
	Encryption *Encryption `json:"encryption,omitempty"`

	// Sealed is set if the backup hides names: this manifest lists only opaque file names, and
	// the chunk named here holds the full one.
	Sealed string `json:"sealed,omitempty"`

	Totals Totals `json:"totals"` // sums over all chunks
}

// An Engine is a kind of database server.
type Engine string

// The engines that weir backs up.
const (
	PostgreSQL Engine = "postgresql"
	MariaDB    Engine = "mariadb"
	MySQL      Engine = "mysql"
)

// Server describes the server that was backed up.
type Server struct {
	// Version is the server's version string, such as "15.20 (Debian 15.20-0+deb12u1)".
	Version string `json:"version"`

	// Number is the version in comparable form: PostgreSQL's server_version_num (150020),
	// MySQL's version id (101119).
	Number int `json:"number,omitempty"`

	// SystemID is PostgreSQL's system identifier or MySQL's server_uuid; empty if the server
	// has none.
	SystemID string `json:"system_id,omitempty"`
}

// A Position is a moment in the source's history, in the terms of its engine. Fields that the
// engine does not have are empty.
type Position struct {
	Time     time.Time `json:"time,omitzero"`      // by the server's clock
	Snapshot string    `json:"snapshot,omitempty"` // pg_current_snapshot() or the like
	LSN      string    `json:"lsn,omitempty"`      // in the log of PostgreSQL
	Timeline int       `json:"timeline,omitempty"` // of the LSN
	Binlog   string    `json:"binlog,omitempty"`   // file name
	Offset   int64     `json:"offset,omitempty"`   // bytes into Binlog
	GTID     string    `json:"gtid,omitempty"`     // of MySQL and MariaDB: the transactions that the backup contains
}

// Encryption says for which keys a backup is encrypted.
type Encryption struct {
	// Scheme is "age" (https://age-encryption.org/v1).
	Scheme string `json:"scheme"`

	// Recipients are public keys: age1... or ssh-... without its comment.
	Recipients []string `json:"recipients,omitempty"`

	// KeyFile is set if a passphrase decrypts the backup: this file holds an age identity,
	// encrypted with the passphrase, to which all chunks are encrypted. Decrypting with a
	// passphrase is slow on purpose (about a second); this way it is done once and not per
	// chunk.
	KeyFile string `json:"key_file,omitempty"`

	// KeySHA256 is the SHA-256 of KeyFile; absent in backups of older versions.
	KeySHA256 string `json:"key_sha256,omitempty"`
}

// Totals are sums over all chunks.
type Totals struct {
	Chunks      int   `json:"chunks"`       // number of chunks
	Tables      int   `json:"tables"`       // number of tables
	Rows        int64 `json:"rows"`         // number of rows
	PlainBytes  int64 `json:"plain_bytes"`  // before compression and encryption
	StoredBytes int64 `json:"stored_bytes"` // as stored
}

// A Database is one database of the source.
type Database struct {
	Name string `json:"name"`

	// Attributes are what is needed to create it again: owner, encoding, collation, ...
	Attributes map[string]string `json:"attributes,omitempty"`

	Tables []Table `json:"tables,omitempty"`
}

// A Table is a table with its data.
type Table struct {
	Schema string `json:"schema,omitempty"` // empty if the engine has none
	Name   string `json:"name"`

	// Columns are the columns in its data chunks, in their order.
	Columns []string `json:"columns,omitempty"`

	// Rows, PlainBytes and Parts are the sums over its data chunks. Finish fills them in.
	Rows       int64 `json:"rows"`
	PlainBytes int64 `json:"plain_bytes"`
	Parts      int   `json:"parts"`

	// Checksum is the engine's own checksum of the rows, with the name of its algorithm
	// ("md5:..."). Empty if none was requested.
	Checksum string `json:"checksum,omitempty"`

	Attributes map[string]string `json:"attributes,omitempty"`
}

// A Kind is the purpose of a chunk. An engine may add kinds of its own.
type Kind string

// The kinds that all engines share.
const (
	KindGlobals Kind = "globals" // roles, tablespaces, accounts
	KindSchema  Kind = "schema"  // definitions
	KindData    Kind = "data"    // rows of one table
	KindBlobs   Kind = "blobs"   // large objects
	KindState   Kind = "state"   // sequences and other state beside rows
	KindLog     Kind = "log"     // WAL, binlog
	KindOther   Kind = "other"
)

// ChunkInfo is what the caller specifies about a chunk before writing it.
type ChunkInfo struct {
	// Path is the name of the chunk, without the suffixes of compression and encryption:
	// "db/shop/data/public.orders/0001.copy". Slashes separate its parts; no part is empty, "."
	// or "..". See [DataPath] and [SchemaPath].
	Path string `json:"path"`

	Kind     Kind   `json:"kind"`               // globals, schema, data, blobs, state, log or other
	Database string `json:"database,omitempty"` // the database that the chunk belongs to
	Schema   string `json:"schema,omitempty"`   // of Table
	Table    string `json:"table,omitempty"`    // the table whose rows the chunk has

	// Part numbers the chunks of one table from 1.
	Part int `json:"part,omitempty"`

	// Order is the position of the chunk among those of its kind in a restore.
	Order int `json:"order,omitempty"`

	// Content is the format of the plain bytes: "copy-text", "copy-binary", "sql", "tsv".
	Content string `json:"content,omitempty"`

	// Attributes are further facts, such as the range of keys or the snapshot of the chunk. The
	// journal also has them, for a resumed backup to check.
	Attributes map[string]string `json:"attributes,omitempty"`
}

// A Chunk describes a complete chunk.
type Chunk struct {
	ChunkInfo

	// File is the name of the object, relative to the backup: the path with the suffixes of
	// compression and encryption.
	File string `json:"file"`

	Codec Codec `json:"codec"` // how it is compressed: none, gzip, zstd or lz4

	// Segments is above 1 only in a tar stream, where a long chunk is cut into
	// files with the suffixes .part-000001, .part-000002, ...
	Segments int `json:"segments,omitempty"`

	Rows         int64  `json:"rows,omitempty"`         // number of rows in the chunk
	PlainBytes   int64  `json:"plain_bytes"`            // before compression and encryption
	PlainXXH64   string `json:"plain_xxh64,omitempty"`  // hash of the plain bytes, in hex
	PlainSHA256  string `json:"plain_sha256,omitempty"` // in its place, in archives of earlier versions
	StoredBytes  int64  `json:"stored_bytes"`           // as stored
	StoredSHA256 string `json:"stored_sha256"`          // hash of the stored bytes, in hex
}
