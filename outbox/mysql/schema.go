package mysql

import (
	"strings"

	"github.com/weirdb/weir/outbox"
)

// schemaVersion is the version of the tables that this code creates and uses.
const schemaVersion = 1

// message defines the columns that all tables of messages have. The defaults let plain SQL
// insert only topic, msg_key and payload. Such rows have no bucket; readers compute it.
const message = `
  bucket SMALLINT NULL,
  id BINARY(16) NOT NULL DEFAULT (UNHEX(REPLACE(UUID(), '-', ''))),
  topic VARCHAR(255) NOT NULL,
  msg_key VARCHAR(255) NOT NULL DEFAULT '',
  payload LONGBLOB NOT NULL,
  headers MEDIUMTEXT NULL,
  dedup_key VARCHAR(255) NULL,
  created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),`

// messageColumns are the columns that a message keeps when it moves between tables.
const messageColumns = "bucket, id, topic, msg_key, payload, headers, dedup_key"

// messageColumnsOf returns messageColumns, qualified by alias.
func messageColumnsOf(alias string) string {
	return alias + "." + strings.ReplaceAll(messageColumns, ", ", ", "+alias+".")
}

const engine = "\n) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"

// The tables. The outbox table has only its primary key: each message would pay for a further
// index twice. Layout History also has an index of pending rows, and created_at in the primary
// key, which partitioning requires.
const (
	createQueue = "CREATE TABLE IF NOT EXISTS {outbox} (\n  seq BIGINT NOT NULL AUTO_INCREMENT," + message + "\n  PRIMARY KEY (seq)" + engine

	createHistory = "CREATE TABLE IF NOT EXISTS {outbox} (\n  seq BIGINT NOT NULL AUTO_INCREMENT," + message + `
  status TINYINT NOT NULL DEFAULT 0,
  done_at DATETIME(6) NULL,
  PRIMARY KEY (seq, created_at),
  KEY pending (status, seq)` + engine

	createScheduled = "CREATE TABLE IF NOT EXISTS {scheduled} (\n  seq BIGINT NOT NULL AUTO_INCREMENT," + message + `
  available_at DATETIME(6) NOT NULL,
  PRIMARY KEY (seq),
  KEY due (available_at, seq)` + engine

	createParked = `CREATE TABLE IF NOT EXISTS {parked} (
  seq BIGINT NOT NULL,
  attempts INT NOT NULL,
  due_at DATETIME(6) NOT NULL,
  error TEXT NOT NULL,
  id BINARY(16) NULL,
  PRIMARY KEY (seq)` + engine

	// addNoteIDs upgrades tables of an older weir, whose relays work with the column, too.
	addNoteIDs = "ALTER TABLE {parked} ADD COLUMN id BINARY(16) NULL"

	createDead = "CREATE TABLE IF NOT EXISTS {dead} (\n  dead_seq BIGINT NOT NULL AUTO_INCREMENT,\n  seq BIGINT NOT NULL," + message + `
  attempts INT NOT NULL,
  reason VARCHAR(32) NOT NULL,
  error TEXT NOT NULL,
  died_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  PRIMARY KEY (dead_seq),
  KEY died (died_at),
  KEY id (id)` + engine

	createLease = `CREATE TABLE IF NOT EXISTS {lease} (
  shard INT NOT NULL,
  owner VARCHAR(255) NOT NULL DEFAULT '',
  epoch BIGINT NOT NULL DEFAULT 0,
  taken_at DATETIME(6) NULL,
  PRIMARY KEY (shard)` + engine

	createMeta = `CREATE TABLE IF NOT EXISTS {meta} (
  one TINYINT NOT NULL DEFAULT 1,
  version INT NOT NULL DEFAULT 0,
  layout VARCHAR(16) NOT NULL,
  shards INT NOT NULL DEFAULT 0,
  PRIMARY KEY (one)` + engine
)

// requiredColumns returns the columns that an outbox table must have.
func requiredColumns(l outbox.Layout) []string {
	columns := append([]string{"seq", "created_at"}, strings.Split(messageColumns, ", ")...)
	if l == outbox.History {
		columns = append(columns, "status", "done_at")
	}
	return columns
}
