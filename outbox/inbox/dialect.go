package inbox

import (
	"fmt"
	"strings"
	"time"
)

// dialect is the SQL of one kind of database.
type dialect int

const (
	postgres dialect = iota
	mysql
	sqlite
)

// quote quotes "name" or "schema.name".
func (d dialect) quote(name string) string {
	q := `"`
	if d == mysql {
		q = "`"
	}
	parts := strings.SplitN(name, ".", 2)
	for i, p := range parts {
		parts[i] = q + strings.ReplaceAll(p, q, q+q) + q
	}
	return strings.Join(parts, ".")
}

// index returns the name of the table's index, without a schema.
func (d dialect) index(table string) string {
	return d.quote(strings.ReplaceAll(table[strings.LastIndexByte(table, '.')+1:], ".", "_") + "_at")
}

// create returns the statements that create the table. Its key has a binary collation: with MySQL's
// usual collations "A" and "a" would be the same message.
func (d dialect) create(table string) []string {
	t := d.quote(table)
	switch d {
	case postgres:
		return []string{
			`CREATE TABLE IF NOT EXISTS ` + t + ` (source text COLLATE "C" NOT NULL, id text COLLATE "C" NOT NULL, ` +
				`at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (source, id))`,
			`CREATE INDEX IF NOT EXISTS ` + d.index(table) + ` ON ` + t + ` (at)`,
		}
	case mysql:
		return []string{
			`CREATE TABLE IF NOT EXISTS ` + t + ` (source VARBINARY(255) NOT NULL, id VARBINARY(255) NOT NULL, ` +
				`at DATETIME(6) NOT NULL, PRIMARY KEY (source, id), KEY ` + d.index(table) + ` (at)) ENGINE=InnoDB`,
		}
	}
	// In SQLite the schema is written before the index's name.
	index := d.index(table)
	if schema, _, ok := strings.Cut(table, "."); ok {
		index, t = d.quote(schema)+"."+index, d.quote(table[len(schema)+1:])
	}
	return []string{
		`CREATE TABLE IF NOT EXISTS ` + d.quote(table) + ` (source TEXT NOT NULL, id TEXT NOT NULL, at INTEGER NOT NULL, ` +
			`PRIMARY KEY (source, id)) WITHOUT ROWID`,
		`CREATE INDEX IF NOT EXISTS ` + index + ` ON ` + t + ` (at)`,
	}
}

// microseconds since 1970, by SQLite's clock.
const microseconds = `CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)`

// note inserts a row unless it exists.
func (d dialect) note(table string) string {
	t := d.quote(table)
	switch d {
	case postgres:
		return `INSERT INTO ` + t + ` (source, id) VALUES ($1, $2) ON CONFLICT DO NOTHING`
	case mysql:
		// IGNORE, and not ON DUPLICATE KEY UPDATE: that counts a row that was
		// there as affected when the client asks for found rows. There is nothing
		// else in the row for it to ignore.
		return `INSERT IGNORE INTO ` + t + ` (source, id, at) VALUES (?, ?, UTC_TIMESTAMP(6))`
	}
	return `INSERT INTO ` + t + ` (source, id, at) VALUES (?, ?, ` + microseconds + `) ON CONFLICT DO NOTHING`
}

// purge deletes up to purgeBatch rows noted before a time.
func (d dialect) purge(table string) string {
	t := d.quote(table)
	switch d {
	case postgres:
		return fmt.Sprintf(`DELETE FROM %s WHERE ctid = ANY(ARRAY(SELECT ctid FROM %s WHERE at < $1 ORDER BY at LIMIT %d))`, t, t, purgeBatch)
	case mysql:
		return fmt.Sprintf(`DELETE FROM %s WHERE at < ? ORDER BY at LIMIT %d`, t, purgeBatch)
	}
	return fmt.Sprintf(`DELETE FROM %s WHERE (source, id) IN (SELECT source, id FROM %s WHERE at < ? ORDER BY at LIMIT %d)`, t, t, purgeBatch)
}

// text converts a source or identity for the column.
func (d dialect) text(s string) any {
	if d == mysql {
		return []byte(s) // no character set between here and the column
	}
	return s
}

// moment converts a time for the column, whatever the session's time zone.
func (d dialect) moment(t time.Time) any {
	switch d {
	case postgres:
		return t.UTC().Format("2006-01-02 15:04:05.999999-07:00")
	case mysql:
		return t.UTC().Format("2006-01-02 15:04:05.999999")
	}
	return t.UnixMicro()
}
