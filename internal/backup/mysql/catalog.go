package mysql

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
)

// table is a table of the backup.
type table struct {
	db, name string
	engine   string
	rows     int64 // estimated by the server
	bytes    int64 // of the rows, on disk, estimated
	history  bool  // MariaDB keeps the earlier versions of its rows
	withRows bool

	columns []column
	layout  my.Layout
	parts   []part
	key     string // columns by which parts are ranges

	mu        sync.Mutex // guards what follows
	count     int64
	bytesRead int64
	kept      int
	busy      time.Duration
	sum       my.RowSum
	sums      bool
}

// column has what a backup needs to know about a column.
type column struct {
	name, dataType, charset string
	columnType              string // the type with all its attributes
	fallback                string // its default, as the server shows it
	generated, auto         bool
	row                     string // "ROW START" or "ROW END" of a system-versioned table
}

// mayHide reports whether the server may show a column's definition incorrectly: it prints the
// values of ENUM and SET, and defaults that are strings, in 3-byte UTF-8, with a question mark
// for a 4-byte character.
func (c column) mayHide() bool {
	wide := slices.ContainsFunc([]string{"utf8mb4", "utf16", "utf32", "gb18030"}, func(s string) bool { return strings.HasPrefix(c.charset, s) })
	return wide && ((c.dataType == "enum" || c.dataType == "set") && strings.Contains(c.columnType, "?") || strings.Contains(c.fallback, "?"))
}

func (t *table) sql() string      { return my.Qualified(t.db, t.name) }
func (t *table) fullName() string { return t.db + "." + t.name }

// versioned reports whether a transaction's view applies to the table's rows.
func (t *table) versioned() bool { return strings.EqualFold(t.engine, "InnoDB") }

func (t *table) elsewhere() bool { return my.Elsewhere(t.engine) }

func same(a, b *table) bool { return a.db == b.db && a.name == b.name && a.engine == b.engine }

// unsafeTables returns the tables whose rows can change under a reader.
func unsafeTables(tables []*table) []*table {
	var out []*table
	for _, t := range tables {
		if t.withRows && !t.versioned() {
			out = append(out, t)
		}
	}
	return out
}

// names formats tables with their engines, for messages.
func names(tables []*table) string {
	out := make([]string, len(tables))
	for i, t := range tables {
		out[i] = t.fullName() + " (" + t.engine + ")"
	}
	return strings.Join(out, ", ")
}

// list lists the tables of the backup, in the order of their names.
func (r *runner) list(ctx context.Context) ([]*table, error) {
	var out []*table
	for _, d := range r.databases {
		d.views, d.seqs = nil, nil
		err := r.main.QueryNamed(ctx, `SELECT table_name AS name, table_type AS type, engine AS engine, table_rows AS rows_about, data_length AS bytes
			FROM information_schema.tables WHERE table_schema = `+my.Literal(d.name)+` ORDER BY table_name`, func(row map[string]string) error {
			name := row["name"]
			if !r.match.Table(d.name, name) {
				return nil
			}
			switch row["type"] {
			case "VIEW":
				d.views = append(d.views, name)
				return nil
			case "SEQUENCE":
				d.seqs = append(d.seqs, name)
				return nil
			case "BASE TABLE", "SYSTEM VERSIONED":
			default:
				return nil // a temporary table of this session
			}
			if row["engine"] == "" {
				return fmt.Errorf("table %s.%s: the server cannot open it (CHECK TABLE says more; --exclude-table leaves it out)", d.name, name)
			}
			t := &table{db: d.name, name: name, engine: row["engine"], history: row["type"] == "SYSTEM VERSIONED"}
			t.rows, t.bytes = number(row["rows_about"]), number(row["bytes"])
			t.withRows = !t.elsewhere() && r.match.Data(d.name, name)
			out = append(out, t)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list tables of %s: %w", d.name, err)
		}
	}
	return out, nil
}

func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0 // unknown, or out of range: it is an estimate
	}
	return n
}

// adopt makes the tables that are pinned now those of the backup.
func (r *runner) adopt(ctx context.Context, tables []*table) error {
	for _, d := range r.databases {
		d.tables = nil
		byName := map[string]*table{}
		for _, t := range tables {
			if t.db == d.name {
				d.tables = append(d.tables, t)
				byName[t.name] = t
			}
		}
		if err := r.columns(ctx, d, byName); err != nil {
			return err
		}
		for _, t := range d.tables {
			if t.history && r.forgets(t) == "" {
				t.remember()
			}
			t.arrange(r.opts.Checksums)
			switch {
			case t.elsewhere():
				r.warn("table %s: its rows are not on this server (%s), and only its definition is backed up", t.fullName(), t.engine)
			case t.history && t.withRows && !t.layout.History():
				r.warn("table %s: what its rows were before (SYSTEM VERSIONING) is NOT backed up: %s", t.fullName(), r.forgets(t))
			}
		}
	}
	return nil
}

func (r *runner) columns(ctx context.Context, d *database, tables map[string]*table) error {
	err := r.main.QueryNamed(ctx, `SELECT table_name AS t, column_name AS c, data_type AS type, column_type AS whole, extra AS extra,
		character_set_name AS charset, generation_expression AS expression, column_default AS fallback
		FROM information_schema.columns WHERE table_schema = `+my.Literal(d.name)+` ORDER BY table_name, ordinal_position`, func(row map[string]string) error {
		if t := tables[row["t"]]; t != nil {
			extra := strings.ToUpper(row["extra"])
			c := column{
				name: row["c"], dataType: strings.ToLower(row["type"]), charset: row["charset"], columnType: row["whole"], fallback: row["fallback"],
				// DEFAULT_GENERATED is a default, not a generated column.
				generated: strings.Contains(extra, "VIRTUAL GENERATED") || strings.Contains(extra, "STORED GENERATED") || strings.Contains(extra, "PERSISTENT"),
				auto:      strings.Contains(extra, "AUTO_INCREMENT"),
			}
			if e := row["expression"]; t.history && (e == rowStart || e == rowEnd) {
				c.row = e
			}
			t.columns = append(t.columns, c)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list columns of %s: %w", d.name, err)
	}
	return nil
}

// MariaDB's names for the columns in which a system-versioned table records from when until
// when a row was valid.
const (
	rowStart = "ROW START"
	rowEnd   = "ROW END"
)

// forgets returns why the earlier row versions of a system-versioned table cannot be backed up;
// "" if they can. They are of use only if a server can restore them.
func (r *runner) forgets(t *table) string {
	if r.main.Version() < 101100 {
		return "servers take it back from MariaDB 10.11 on"
	}
	if slices.ContainsFunc(t.columns, func(c column) bool { return c.row != "" && c.dataType != "timestamp" }) {
		return "it is noted by transactions, which no server takes back"
	}
	return ""
}

// remember includes earlier row versions in the table's backup. The columns that hold their
// validity need not be declared, and are not listed then.
func (t *table) remember() {
	for i := range t.columns {
		if t.columns[i].row != "" {
			t.columns[i].generated = false
		}
	}
	if !slices.ContainsFunc(t.columns, func(c column) bool { return c.row != "" }) {
		t.columns = append(t.columns, column{name: "row_start", dataType: "timestamp", row: rowStart}, column{name: "row_end", dataType: "timestamp", row: rowEnd})
	}
}

// arrange decides how rows are stored.
func (t *table) arrange(sums bool) {
	t.sums = sums
	t.layout = my.Layout{}
	for _, c := range t.columns {
		if c.generated {
			continue
		}
		form := my.FormOf(c.dataType, c.columnType)
		if c.row == rowEnd {
			form = my.End
		}
		if c.auto {
			t.layout.Auto = c.name
		}
		t.layout.Columns = append(t.layout.Columns, c.name)
		t.layout.Forms = append(t.layout.Forms, form)
	}
}

// describe returns the manifest's entry for the table.
func (t *table) describe() archive.Table {
	d := archive.Table{
		Name: t.name, Columns: t.layout.Columns,
		Attributes: map[string]string{
			"engine": t.engine, "forms": t.layout.Letters(), "load": t.layout.Load("/dev/stdin", my.Ident(t.name)),
		},
	}
	if t.sums {
		d.Checksum = t.sum.String()
	}
	return d
}

func (t *table) stats() backup.TableStats {
	return backup.TableStats{
		Database: t.db, Table: t.name, Chunks: len(t.parts), Rows: t.count, Bytes: t.bytesRead, Busy: t.busy, Kept: t.kept,
	}
}
