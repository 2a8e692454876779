package backupdata

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"
)

// text returns all rows of a shape as text.
func text(t *testing.T, s Shape, d Dialect, size int64, seed uint64) []byte {
	t.Helper()
	var all bytes.Buffer
	for _, table := range s.Tables(size) {
		if _, err := all.ReadFrom(table.Reader(d, seed)); err != nil {
			t.Fatal(err)
		}
		if table.Rows() == 0 {
			t.Errorf("%s.%s has no rows", s.Name, table.Name)
		}
	}
	return all.Bytes()
}

func packed(t *testing.T, b []byte) int {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Len()
}

// The size is what was asked for, and what gzip makes of it what it makes of real
// data of the kind. Hexadecimal text halves by itself.
func TestShapesHaveSizeAndRatioOfTheirKind(t *testing.T) {
	const size = 1 << 20
	for name, want := range map[string][2]float64{
		"shop": {2.4, 4.5}, "many": {2, 4.5}, "huge": {2.4, 4.5}, "text": {2.2, 3.2}, "binary": {1.9, 2.8}, "random": {1.6, 2.0},
	} {
		s, err := ByName(name)
		if err != nil {
			t.Fatal(err)
		}
		b := text(t, s, PostgreSQL, size, 1)
		if n := len(b); n < size*98/100 || n > size*106/100 {
			t.Errorf("%s has %d bytes, %d were asked for", name, n, size)
		}
		ratio := float64(len(b)) / float64(packed(t, b))
		t.Logf("%s: gzip makes it %.2f times smaller", name, ratio)
		if ratio < want[0] || ratio > want[1] {
			t.Errorf("%s: gzip makes it %.2f times smaller, want %v", name, ratio, want)
		}
		if !utf8.Valid(b) {
			t.Errorf("%s is no UTF-8", name)
		}
	}
}

func TestSameSeedSameRows(t *testing.T) {
	for _, s := range Shapes() {
		a, b := text(t, s, MySQL, 1<<18, 7), text(t, s, MySQL, 1<<18, 7)
		if !bytes.Equal(a, b) {
			t.Errorf("%s: the same seed gave other rows", s.Name)
		}
		if c := text(t, s, MySQL, 1<<18, 8); bytes.Equal(a, c) {
			t.Errorf("%s: another seed gave the same rows", s.Name)
		}
	}
}

// The rows of the shop with seed 1 never change: results of two builds are of the
// same data. A change of the generator has to change this sum, too, and says so.
func TestRowsAreWhatTheyWere(t *testing.T) {
	s, err := ByName("shop")
	if err != nil {
		t.Fatal(err)
	}
	const want = "ea41fb810aa2b1c3"
	if got := fmt.Sprintf("%x", sha256.Sum256(text(t, s, PostgreSQL, 1<<20, 1)))[:16]; got != want {
		t.Errorf("sum %s, want %s: measurements before and after this are of other data", got, want)
	}
}

// Every row has as many values as the table has columns, its keys count from 1,
// and references point to rows that exist.
func TestRowsFitTheirTables(t *testing.T) {
	for _, s := range Shapes() {
		for _, d := range []Dialect{PostgreSQL, MySQL} {
			for _, table := range s.Tables(1 << 20) {
				b, err := io.ReadAll(table.Reader(d, 3))
				if err != nil {
					t.Fatal(err)
				}
				checkRows(t, table, string(b))
			}
		}
	}
}

func checkRows(t *testing.T, table *Table, rows string) {
	t.Helper()
	var n int64
	for line := range strings.Lines(rows) {
		n++
		values := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(values) != len(table.Columns) {
			t.Fatalf("%s row %d has %d values for %d columns: %q", table.Name, n, len(values), len(table.Columns), line)
		}
		if values[0] != fmt.Sprint(n) {
			t.Fatalf("%s row %d has the key %s", table.Name, n, values[0])
		}
		for i, c := range table.Columns {
			if values[i] == `\N` && !c.Null {
				t.Fatalf("%s.%s is null in row %d", table.Name, c.Name, n)
			}
			to := table.References[c.Name]
			if to == nil {
				continue
			}
			var id int64
			if _, err := fmt.Sscan(values[i], &id); err != nil || id < 1 || id > to.Rows() {
				t.Fatalf("%s.%s of row %d is %s, and %s has %d rows", table.Name, c.Name, n, values[i], to.Name, to.Rows())
			}
		}
	}
	if n != table.Rows() {
		t.Errorf("%s says it has %d rows, and gave %d", table.Name, table.Rows(), n)
	}
}

// A reader yields the same bytes however it is read.
func TestReaderByTheByte(t *testing.T) {
	table := documents(20_000)
	want, err := io.ReadAll(table.Reader(PostgreSQL, 1))
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(iotest.OneByteReader(table.Reader(PostgreSQL, 1)))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("read by the byte, the rows are others")
	}
}

func TestStatements(t *testing.T) {
	tables := shop(1)
	var got []string
	for _, table := range []*Table{tables[3], tables[6]} {
		for _, d := range []Dialect{PostgreSQL, MySQL} {
			got = append(got, table.Create(d), table.Load(d, "h"))
		}
	}
	got = append(got, tables[3].Finish(PostgreSQL)...)
	want := []string{
		"CREATE TABLE items (id bigint NOT NULL, order_id bigint NOT NULL, product_id bigint NOT NULL, quantity bigint NOT NULL, price numeric(12,2) NOT NULL, discount double precision, PRIMARY KEY (id))",
		"COPY items FROM STDIN",
		"CREATE TABLE items (id bigint NOT NULL, order_id bigint NOT NULL, product_id bigint NOT NULL, quantity bigint NOT NULL, price decimal(12,2) NOT NULL, discount double, PRIMARY KEY (id)) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4",
		"LOAD DATA LOCAL INFILE 'Reader::h' INTO TABLE items CHARACTER SET utf8mb4 (id, order_id, product_id, quantity, price, discount)",
		"CREATE TABLE attachments (id bigint NOT NULL, name varchar(200) NOT NULL, mime varchar(200) NOT NULL, content bytea NOT NULL, PRIMARY KEY (id))",
		"COPY attachments FROM STDIN",
		"CREATE TABLE attachments (id bigint NOT NULL, name varchar(200) NOT NULL, mime varchar(200) NOT NULL, content mediumblob NOT NULL, PRIMARY KEY (id)) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4",
		"LOAD DATA LOCAL INFILE 'Reader::h' INTO TABLE attachments CHARACTER SET utf8mb4 (id, name, mime, @content) SET content = UNHEX(@content)",
		"CREATE INDEX items_order_id ON items (order_id)",
		"CREATE INDEX items_product_id ON items (product_id)",
		"ALTER TABLE items ADD CONSTRAINT items_order_id_fk FOREIGN KEY (order_id) REFERENCES orders (id)",
		"ALTER TABLE items ADD CONSTRAINT items_product_id_fk FOREIGN KEY (product_id) REFERENCES products (id)",
	}
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("statement %d:\n got %q\nwant %q", i, got[min(i, len(got)-1)], want[min(i, len(want)-1)])
		}
	}
}

func TestByNameNamesAll(t *testing.T) {
	if _, err := ByName("none"); err == nil || !strings.Contains(err.Error(), "shop, many, huge, text, binary, random") {
		t.Errorf("said %v", err)
	}
}
