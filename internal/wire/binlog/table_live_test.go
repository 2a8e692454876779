package binlog

import (
	"slices"
	"testing"
)

// mapped returns a table as the log has it, by an insert into it.
func (s target) mapped(t *testing.T, schema, create, insert string) *Table {
	t.Helper()
	c := s.session(t)
	run(t, c, "USE "+schema, "SET sql_mode = ''", create)
	start := s.end(t, c)
	run(t, c, insert)
	r := NewReader(s.stream(t, StreamConfig{Start: Start{Position: start}, NonBlocking: true}), ReaderConfig{Want: in(schema)})
	for {
		rec, err := r.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if rec.Kind == Changes {
			return rec.Rows.Table
		}
	}
}

func TestTablesSayWhatTheirColumnsAre(t *testing.T) {
	eachServer(t, func(t *testing.T, s target) {
		name, c := s.database(t)
		before := one(t, c, "SELECT @@global.binlog_row_metadata")
		run(t, c, "SET GLOBAL binlog_row_metadata = FULL")
		defer run(t, c, "SET GLOBAL binlog_row_metadata = "+before)
		utf8 := one(t, c, "SELECT id FROM information_schema.collations WHERE collation_name = 'utf8mb4_bin'")

		// One that differs is logged as an exception from the default.
		tab := s.mapped(t, name, "CREATE TABLE a (k VARCHAR(20), a TEXT, b TEXT, l CHAR(3) CHARACTER SET latin1 COLLATE latin1_bin, c TEXT,"+
			" d TEXT, e CHAR(5) NOT NULL, n INT UNSIGNED, PRIMARY KEY (e, k(4))) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "INSERT INTO a (k) VALUES ('k')")
		for i, col := range tab.Columns[:7] {
			want := uint32(atoi(t, utf8))
			if i == 3 {
				want = 47 // latin1_bin
			}
			if col.Charset != want {
				t.Errorf("column %s has character set %d, want %d", col.Name, col.Charset, want)
			}
		}
		if !slices.Equal(tab.PrimaryKey, []int{6, 0}) {
			t.Errorf("primary key %v, want columns 6 and 0", tab.PrimaryKey)
		}
		if e := tab.Columns[6]; e.Nullable || e.Length != 20 || !tab.Columns[1].Nullable {
			t.Errorf("%+v, want 20 bytes, not nullable", e)
		}

		// As many of each are logged one by one.
		tab = s.mapped(t, name, "CREATE TABLE b (a TEXT, b BLOB, c CHAR(3), d BINARY(3), e ENUM('x','y'), s SET('p','q'), id INT PRIMARY KEY)",
			"INSERT INTO b (id) VALUES (1)")
		for i, binary := range []bool{false, true, false, true} {
			if col := tab.Columns[i]; (col.Charset == charsetBinary) != binary {
				t.Errorf("column %s has character set %d", col.Name, col.Charset)
			}
		}
		if !slices.Equal(tab.Columns[4].Members, []string{"x", "y"}) || !slices.Equal(tab.Columns[5].Members, []string{"p", "q"}) {
			t.Errorf("members %q and %q", tab.Columns[4].Members, tab.Columns[5].Members)
		}
		if !slices.Equal(tab.PrimaryKey, []int{6}) {
			t.Errorf("primary key %v, want column 6", tab.PrimaryKey)
		}
	})
}

func TestCatalogLeavesTablesAloneThatHaveChanged(t *testing.T) {
	eachServer(t, func(t *testing.T, s target) {
		name, c := s.database(t)
		run(t, c, "CREATE TABLE a (id INT UNSIGNED)")
		start := s.end(t, c)
		run(t, c, "INSERT INTO a VALUES (1)", "ALTER TABLE a ADD COLUMN b INT FIRST")
		r := NewReader(s.stream(t, StreamConfig{Start: Start{Position: start}, NonBlocking: true}),
			ReaderConfig{Want: in(name), Describe: Catalog(s.session(t))})
		for {
			rec, err := r.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if rec.Kind != Changes {
				continue
			}
			if col := rec.Rows.Table.Columns[0]; col.Name != "" {
				t.Errorf("the column is called %s", col.Name)
			}
			return
		}
	})
}
