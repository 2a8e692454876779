package catalogue

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// A Table is a table that groups of writes may write to: an InnoDB table without triggers. The
// server rolls back a statement of a group that fails, and writing a row has no other effects.
type Table struct {
	auto string // the AUTO_INCREMENT column in lower case, "" if there is none
}

// TableSQL returns the query for ReadTable. db and name are constants, as the server reads them,
// or db is DATABASE(). It does not see triggers that the account cannot see. The names are
// constants everywhere: otherwise MariaDB opens every table of every database to find the one.
func TableSQL(db, name string) string {
	return `SELECT t.ENGINE, t.TABLE_TYPE,
 (SELECT COUNT(*) FROM information_schema.TRIGGERS g WHERE g.EVENT_OBJECT_SCHEMA = ` + db + ` AND g.EVENT_OBJECT_TABLE = ` + name + `),
 (SELECT MIN(c.COLUMN_NAME) FROM information_schema.COLUMNS c WHERE c.TABLE_SCHEMA = ` + db + ` AND c.TABLE_NAME = ` + name + ` AND c.EXTRA LIKE '%auto_increment%')
 FROM information_schema.TABLES t WHERE t.TABLE_SCHEMA = ` + db + ` AND t.TABLE_NAME = ` + name
}

// ReadTable reads the answer; ok is false if it is no such table.
func ReadTable(rows [][][]byte) (t Table, ok bool) {
	if len(rows) != 1 || !strings.EqualFold(string(rows[0][0]), "InnoDB") ||
		!strings.EqualFold(string(rows[0][1]), "BASE TABLE") || string(rows[0][2]) != "0" {
		return Table{}, false
	}
	return Table{auto: strings.ToLower(string(rows[0][3]))}, true
}

// Counts reports whether the server counts the table's rows, in an AUTO_INCREMENT column.
func (t Table) Counts() bool { return t.auto != "" }

// Generates reports whether each row of an INSERT gets its AUTO_INCREMENT value from the
// server, so that the ids of several rows follow from the first one's. It is true for a table
// without such a column.
func (t Table) Generates(ins *myscan.InsertShape) bool {
	if ins.ColumnList == "" {
		return t.auto == "" // otherwise the row has a value for each column
	}
	for name := range ins.Columns() {
		if strings.EqualFold(name, t.auto) || strings.EqualFold(name, hiddenKey) {
			return false
		}
	}
	return true
}

// hiddenKey is the AUTO_INCREMENT column that MySQL adds to a table without a primary key under
// sql_generate_invisible_primary_key. The server may hide it from everyone.
const hiddenKey = "my_row_id"
