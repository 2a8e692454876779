package backupdata

import (
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
)

// Shape is a kind of database: its tables, and how the bytes are distributed over them.
type Shape struct {
	Name   string
	About  string
	tables func(bytes int64) []*Table
}

// Shapes lists all shapes.
func Shapes() []Shape {
	return []Shape{
		{"shop", "orders, items, events, documents and attachments of a shop", shop},
		{"many", "many small tables", many},
		{"huge", "one table, which tools that do not split tables read with one worker", huge},
		{"text", "long texts", texts},
		{"binary", "files: a header, some structure, much that is compressed already", files},
		{"random", "random bytes, which do not compress", noise},
	}
}

// ByName returns a shape.
func ByName(name string) (Shape, error) {
	all := Shapes()
	i := slices.IndexFunc(all, func(s Shape) bool { return s.Name == name })
	if i < 0 {
		var names []string
		for _, s := range all {
			names = append(names, s.Name)
		}
		return Shape{}, fmt.Errorf("no shape %q: want %s", name, strings.Join(names, ", "))
	}
	return all[i], nil
}

// Tables lists the tables of a database of about that many bytes, as text, in an order that
// satisfies foreign keys. Their readers must be read in this order, each to its end: later ones
// refer to rows of earlier ones.
func (s Shape) Tables(bytes int64) []*Table { return s.tables(bytes) }

// Dialect is the SQL of a database system.
type Dialect int

// The two dialects. MySQL also means MariaDB.
const (
	PostgreSQL Dialect = iota
	MySQL
)

// Kind is the type of a column.
type Kind int

// The kinds of columns.
const (
	Int    Kind = iota // 64 bits
	Money              // two decimals
	Float              // double precision
	Bool               // MySQL: tinyint
	Time               // with microseconds
	String             // at most 200 characters
	Text
	JSON
	Bytes
)

var sqlTypes = map[Kind][2]string{
	Int: {"bigint", "bigint"}, Money: {"numeric(12,2)", "decimal(12,2)"}, Float: {"double precision", "double"},
	Bool: {"boolean", "tinyint(1)"}, Time: {"timestamp(6)", "datetime(6)"}, String: {"varchar(200)", "varchar(200)"},
	Text: {"text", "mediumtext"}, JSON: {"jsonb", "json"}, Bytes: {"bytea", "mediumblob"},
}

// Column is a column. It is NOT NULL unless it says otherwise.
type Column struct {
	Name string
	Kind Kind
	Null bool
}

// Table is a table and how its rows are made. The first column is the primary key and counts
// from 1.
type Table struct {
	Name    string
	Columns []Column
	// Indexes lists the columns of secondary indexes, References the tables that columns refer
	// to.
	Indexes    []string
	References map[string]*Table

	bytes int64 // size of its rows as text
	rows  int64 // made by the last reader that was read to its end
	fill  func(*row)
}

// Rows is the number of rows, after a reader has been read to its end.
func (t *Table) Rows() int64 { return t.rows }

// Create returns the statement that creates the table, with only its primary key.
func (t *Table) Create(d Dialect) string {
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE TABLE %s (", t.Name)
	for i, c := range t.Columns {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s %s", c.Name, sqlTypes[c.Kind][d])
		if !c.Null {
			b.WriteString(" NOT NULL")
		}
	}
	fmt.Fprintf(&b, ", PRIMARY KEY (%s))", t.Columns[0].Name)
	if d == MySQL {
		b.WriteString(" ENGINE=InnoDB DEFAULT CHARSET=utf8mb4")
	}
	return b.String()
}

// Finish returns the statements that add indexes and foreign keys after the rows.
func (t *Table) Finish(Dialect) []string {
	var out []string
	for _, c := range t.Indexes {
		out = append(out, fmt.Sprintf("CREATE INDEX %s_%s ON %s (%s)", t.Name, c, t.Name, c))
	}
	for _, c := range t.Columns {
		if to := t.References[c.Name]; to != nil {
			out = append(out, fmt.Sprintf("ALTER TABLE %s ADD CONSTRAINT %s_%s_fk FOREIGN KEY (%s) REFERENCES %s (%s)",
				t.Name, t.Name, c.Name, c.Name, to.Name, to.Columns[0].Name))
		}
	}
	return out
}

// Load returns the statement that reads the text of a reader: COPY, or LOAD DATA from the named
// handler of the Go driver.
func (t *Table) Load(d Dialect, handler string) string {
	if d == PostgreSQL {
		return "COPY " + t.Name + " FROM STDIN"
	}
	var columns, sets []string
	for _, c := range t.Columns {
		if c.Kind == Bytes {
			columns = append(columns, "@"+c.Name)
			sets = append(sets, fmt.Sprintf("%s = UNHEX(@%s)", c.Name, c.Name))
			continue
		}
		columns = append(columns, c.Name)
	}
	s := fmt.Sprintf("LOAD DATA LOCAL INFILE 'Reader::%s' INTO TABLE %s CHARACTER SET utf8mb4 (%s)", handler, t.Name, strings.Join(columns, ", "))
	if len(sets) > 0 {
		s += " SET " + strings.Join(sets, ", ")
	}
	return s
}

// Reader returns the table's rows as tab-separated text. The same seed gives the same rows.
func (t *Table) Reader(d Dialect, seed uint64) io.Reader {
	name := fnv.New64a()
	_, _ = name.Write([]byte(t.Name)) // never fails
	return &reader{table: t, left: t.bytes, row: row{dialect: d, rng: rand.New(rand.NewPCG(seed, name.Sum64())), at: start}}
}

// reader makes rows on demand.
type reader struct {
	table *Table
	left  int64
	made  int64
	row   row
	out   []byte // made and not yet read
}

// Read fills p; rows may be cut.
func (r *reader) Read(p []byte) (int, error) {
	if len(r.out) == 0 {
		if r.left <= 0 {
			r.table.rows = r.made
			return 0, io.EOF
		}
		r.row.b = r.row.b[:0]
		for len(r.row.b) < 64<<10 && r.left > 0 {
			before := len(r.row.b)
			r.made++
			r.row.id = r.made
			r.row.first = true
			r.row.int(r.made)
			r.table.fill(&r.row)
			r.row.b = append(r.row.b, '\n')
			r.left -= int64(len(r.row.b) - before)
		}
		r.out = r.row.b
	}
	n := copy(p, r.out)
	r.out = r.out[n:]
	return n, nil
}
