package binlog

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// Catalog returns a Describe for ReaderConfig that takes from the server's
// information_schema what its log does not say: names, signedness, and which
// strings are bytes. It asks by server, a connection of its own.
//
// The catalogue knows the table as it is now, the log as it was. Where the
// number of columns differs, the table is left as the log has it; that a column
// was replaced by another one since is not noticed.
func Catalog(server *mywire.Server) func(ctx context.Context, t *Table) error {
	return func(ctx context.Context, t *Table) error {
		rows, err := server.Query(ctx, "SELECT c.column_name, c.column_type, COALESCE(l.id, 0), c.data_type"+
			" FROM information_schema.columns c LEFT JOIN information_schema.collations l ON l.collation_name = c.collation_name"+
			" WHERE c.table_schema = "+quote(t.Schema)+" AND c.table_name = "+quote(t.Name)+
			" ORDER BY c.ordinal_position")
		if err != nil {
			return fmt.Errorf("read columns: %w", err)
		}
		if len(rows) != len(t.Columns) {
			return nil
		}
		for i, row := range rows {
			t.Columns[i].describe(row[0].String, row[1].String, row[2].String, row[3].String)
		}
		return nil
	}
}

// describe fills in what the log left open.
func (c *Column) describe(name, columnType, collation, dataType string) {
	if c.Name == "" {
		c.Name = name
	}
	if c.numeric() && c.Sign == SignUnknown {
		c.Sign = Signed
		if strings.Contains(columnType, "unsigned") || strings.Contains(columnType, "zerofill") {
			c.Sign = Unsigned
		}
	}
	if !c.textual() || c.Charset != 0 {
		return
	}
	if id, err := strconv.ParseUint(collation, 10, 32); err == nil && id != 0 {
		c.Charset = uint32(id)
		return
	}
	switch strings.ToLower(dataType) {
	case "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "uuid", "inet4", "inet6":
		c.Charset = charsetBinary
	}
}
