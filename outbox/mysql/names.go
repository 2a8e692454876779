package mysql

import (
	"fmt"
	"strings"

	"github.com/weirdb/weir/outbox"
)

// maxTable is the longest name, in characters: the server's 64 less the longest
// suffix.
const maxTable = 64 - len(outbox.ScheduledSuffix)

// names are those of the tables.
type names struct {
	schema   string // as named in Options.Table; "" is the session's database
	base     string
	replacer *strings.Replacer
}

// namesOf returns the names of the tables of an outbox.
func namesOf(table string) (names, error) {
	var n names
	n.schema, n.base = splitTable(table)
	if count := len([]rune(n.base)); count == 0 || count > maxTable {
		return n, fmt.Errorf("outbox: table %q: its name has %d characters, want 1 to %d", table, count, maxTable)
	}
	if strings.ContainsRune(table, 0) {
		return n, fmt.Errorf("outbox: table %q: its name holds a NUL", table)
	}
	pairs := []string{"{outbox}", n.table("")}
	for _, suffix := range suffixes {
		pairs = append(pairs, "{"+suffix[1:]+"}", n.table(suffix))
	}
	n.replacer = strings.NewReplacer(pairs...)
	return n, nil
}

// suffixes of the tables beside the outbox table.
var suffixes = []string{outbox.ScheduledSuffix, "_parked", "_dead", "_lease", "_meta"}

func splitTable(name string) (schema, base string) {
	if schema, base, ok := strings.Cut(name, "."); ok {
		return schema, base
	}
	return "", name
}

// table quotes the name of one of the tables.
func (n names) table(suffix string) string {
	if n.schema == "" {
		return quote(n.base + suffix)
	}
	return quote(n.schema) + "." + quote(n.base+suffix)
}

func quote(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// sql replaces {outbox}, {parked}, ... by the names of the tables.
func (n names) sql(text string) string { return n.replacer.Replace(text) }
