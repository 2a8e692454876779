package postgres

import (
	"fmt"
	"hash/fnv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirdb/weir/outbox"
)

// maxName leaves room for suffixes in the 63 bytes of an identifier.
const maxName = 63 - len("_rest_month") - len("_idx1")

// names are the tables of one outbox.
type names struct{ schema, table string }

func splitName(name string) names {
	if schema, table, ok := strings.Cut(name, "."); ok {
		return names{schema, table}
	}
	return names{table: name}
}

func checkName(name string) error {
	n := splitName(name)
	qualified := strings.Contains(name, ".")
	switch {
	case n.table == "" || qualified && n.schema == "":
		return fmt.Errorf("outbox: table name %q: want name or schema.name", name)
	case len(n.table) > maxName || len(n.schema) > 63:
		return fmt.Errorf("outbox: table name %q: at most %d bytes, so that names can be made of it", name, maxName)
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return fmt.Errorf("outbox: table name %q is not UTF-8 without NUL", name)
	}
	return nil
}

// q returns the quoted name of the outbox table with a suffix.
func (n names) q(suffix string) string { return ident(n.schema) + "." + ident(n.table+suffix) }

func ident(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// literal quotes a string for either value of standard_conforming_strings.
func literal(s string) string {
	quoted := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return "E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}

// partition returns the name of the partition that starts at t.
func (n names) partition(p outbox.Period, t time.Time) string {
	if p == outbox.Monthly {
		return n.table + "_p" + t.UTC().Format("200601")
	}
	return n.table + "_p" + t.UTC().Format("20060102")
}

// catchAll returns the name of the catch-all partition. It includes the period, so that the
// tables before and after a conversion do not collide.
func (n names) catchAll(p outbox.Period) string { return n.table + "_rest_" + p.String() }

// lockKey returns the key of an advisory lock, which is local to the database.
func (n names) lockKey(what string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("weir outbox\x00" + n.schema + "\x00" + n.table + "\x00" + what))
	return int64(h.Sum64())
}

func (n names) leaseKey(shard int) int64 { return n.lockKey(fmt.Sprintf("shard %d", shard)) }
func (n names) claimsKey() int64         { return n.lockKey("skip-locked") }
func (n names) migrationKey() int64      { return n.lockKey("migration") }

// channel returns the channel that the trigger of Options.Notify notifies.
func (n names) channel() string { return fmt.Sprintf("weir_outbox_%016x", uint64(n.lockKey("wake"))) }

// publication returns the name of the publication that a tail subscribes to. Publications
// belong to the database, not to a schema.
func (n names) publication() string {
	full := n.schema + "." + n.table + "_tail"
	if len(full) <= 63 {
		return full
	}
	return fmt.Sprintf("weir_outbox_%016x", uint64(n.lockKey("tail")))
}
