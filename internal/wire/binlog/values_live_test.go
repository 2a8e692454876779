package binlog

import (
	"errors"
	"io"
	"strings"
	"testing"
)

// columnCase is a column, values for it as SQL, and how the server is asked for
// the text that the log's value is to have; "" is the column itself.
type columnCase struct {
	definition string
	values     []string
	as         string
	only       string // a flavor
}

var columnCases = []columnCase{
	{definition: "TINYINT", values: []string{"-128", "127", "0", "NULL"}},
	{definition: "TINYINT UNSIGNED", values: []string{"255", "0"}},
	{definition: "SMALLINT", values: []string{"-32768", "32767"}},
	{definition: "SMALLINT UNSIGNED", values: []string{"65535"}},
	{definition: "MEDIUMINT", values: []string{"-8388608", "8388607", "-1"}},
	{definition: "MEDIUMINT UNSIGNED", values: []string{"16777215"}},
	{definition: "INT", values: []string{"-2147483648", "2147483647", "-1"}},
	{definition: "INT UNSIGNED", values: []string{"4294967295"}},
	{definition: "BIGINT", values: []string{"-9223372036854775808", "9223372036854775807"}},
	{definition: "BIGINT UNSIGNED", values: []string{"18446744073709551615"}},
	{definition: "YEAR", values: []string{"1901", "2155", "0", "NULL"}},
	{definition: "TINYINT UNSIGNED", values: []string{"200"}}, // behind YEAR: is that counted among the numbers?
	{definition: "FLOAT", values: []string{"1.5", "-0.25", "0"}},
	{definition: "DOUBLE", values: []string{"1.5e100", "-3.25", "0"}, as: "%s"},
	{definition: "BIGINT UNSIGNED", values: []string{"18446744073709551614"}},
	{definition: "DECIMAL(10,2)", values: []string{"12345678.90", "-12345678.90", "0", "-0.01", "0.10"}},
	{definition: "DECIMAL(65,30)", values: []string{
		"12345678901234567890123456789012345.123456789012345678901234567891",
		"-99999999999999999999999999999999999.999999999999999999999999999999", "1",
	}},
	{definition: "DECIMAL(30,30)", values: []string{"0.000000000000000000000000000001", "-0.5"}},
	{definition: "DECIMAL(9,0)", values: []string{"999999999", "-1", "0"}},
	{definition: "DECIMAL(19,9)", values: []string{"1000000000.000000001", "-10.1"}},
	{definition: "INT UNSIGNED", values: []string{"4294967294"}},
	{definition: "BIT(1)", values: []string{"1", "0"}, as: "%s+0"},
	{definition: "BIT(17)", values: []string{"131071", "65536"}, as: "%s+0"},
	{definition: "BIT(64)", values: []string{"18446744073709551615"}, as: "%s+0"},
	{definition: "DATE", values: []string{"'2026-02-28'", "'1000-01-01'", "'9999-12-31'", "'0000-00-00'"}},
	{definition: "DATETIME", values: []string{"'2026-02-28 23:59:59'", "'1000-01-01 00:00:00'", "'0000-00-00 00:00:00'"}},
	{definition: "DATETIME(1)", values: []string{"'2026-02-28 23:59:59.1'"}},
	{definition: "DATETIME(3)", values: []string{"'2026-02-28 23:59:59.123'", "'2026-02-28 23:59:59.003'"}},
	{definition: "DATETIME(6)", values: []string{"'9999-12-31 23:59:59.999999'"}},
	{definition: "TIMESTAMP NULL", values: []string{"'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'", "NULL"}},
	{definition: "TIMESTAMP(2) NULL", values: []string{"'2026-02-28 23:59:59.12'"}},
	{definition: "TIMESTAMP(4) NULL", values: []string{"'2026-02-28 23:59:59.1234'"}},
	{definition: "TIMESTAMP(6) NULL", values: []string{"'2026-02-28 23:59:59.000001'"}},
	{definition: "TIME", values: []string{"'-838:59:59'", "'838:59:59'", "'00:00:00'", "'-00:00:01'"}},
	{definition: "TIME(1)", values: []string{"'-00:00:00.1'", "'12:34:56.7'"}},
	{definition: "TIME(3)", values: []string{"'-00:00:01.123'", "'12:34:56.789'", "'-01:00:00.000'"}},
	{definition: "TIME(6)", values: []string{"'-838:59:58.999999'", "'00:00:00.000001'", "'-00:00:00.000001'"}},
	{definition: "CHAR(10)", values: []string{"'abc'", "''"}},
	{definition: "CHAR(255) CHARACTER SET utf8mb4", values: []string{"'ä'", "REPEAT('x',255)", "'😀'", "NULL"}},
	{definition: "BINARY(16)", values: []string{"x'00112233445566778899aabbccddee00'", "x'00'"}},
	{definition: "VARCHAR(20)", values: []string{"'abc '", "''"}},
	{definition: "VARCHAR(300)", values: []string{"REPEAT('y',300)", "'z'"}},
	{definition: "VARBINARY(255)", values: []string{"x'00ff00'", "REPEAT('b',255)"}},
	{definition: "VARBINARY(256)", values: []string{"REPEAT('b',256)"}},
	{definition: "TINYTEXT", values: []string{"'tiny'"}},
	{definition: "TEXT", values: []string{"REPEAT('t',70)", "''"}},
	{definition: "MEDIUMTEXT", values: []string{"REPEAT('m',70000)"}},
	{definition: "LONGTEXT", values: []string{"'long'"}},
	{definition: "TINYBLOB", values: []string{"x'00'"}},
	{definition: "BLOB", values: []string{"x'0001fe'", "NULL"}},
	{definition: "MEDIUMBLOB", values: []string{"REPEAT(x'00', 100000)"}},
	{definition: "LONGBLOB", values: []string{"REPEAT('q', 17000000)"}}, // several packets
	{definition: "ENUM('a','b','c')", values: []string{"'b'", "'c'", "NULL"}, as: "%s+0"},
	{definition: "SET('a','b','c','d','e','f','g','h','i')", values: []string{"'a,i'", "''"}, as: "%s+0"},
	{definition: "GEOMETRY", values: []string{"ST_GeomFromText('POINT(1 2)')"}, as: "CONVERT(%s, BINARY)"},
	{definition: "BOOLEAN", values: []string{"TRUE"}},
	{definition: "INT(5) UNSIGNED ZEROFILL", values: []string{"7"}, as: "%s+0"},
	{definition: "UUID", values: []string{"'00112233-4455-6677-8899-aabbccddee00'"}, as: "CAST(%s AS BINARY(16))", only: "mariadb"},
	{definition: "INET6", values: []string{"'2001:db8::'"}, as: "CAST(%s AS BINARY(16))", only: "mariadb"},
	{definition: "VARCHAR(1000) COMPRESSED", values: []string{"REPEAT('c',1000)", "'short'", "''"}, only: "mariadb"},
	{definition: "VARCHAR(255) COMPRESSED", values: []string{"REPEAT('c',255)", "'short'"}, only: "mariadb"},
	{definition: "TEXT COMPRESSED", values: []string{"REPEAT('c',10000)", "'short'", "''"}, only: "mariadb"},
	{definition: "BLOB COMPRESSED", values: []string{"REPEAT(x'00',10000)"}, only: "mariadb"},
	{definition: "JSON", values: []string{`'{"a": 1}'`}, only: "mariadb"},
	{definition: "VECTOR(3)", values: []string{"TO_VECTOR('[1,2,3]')"}, as: "CONVERT(%s, BINARY)", only: "mysql"},
}

func TestValuesOfEveryColumnType(t *testing.T) {
	eachServer(t, func(t *testing.T, s target) {
		for _, metadata := range []string{"NO_LOG", "MINIMAL", "FULL"} {
			if metadata == "NO_LOG" && !s.maria() {
				continue // MINIMAL is the least that MySQL has
			}
			t.Run(metadata, func(t *testing.T) {
				name, c := s.database(t)
				before := one(t, c, "SELECT @@global.binlog_row_metadata")
				run(t, c, "SET GLOBAL binlog_row_metadata = "+metadata, "SET sql_mode = ''", "SET time_zone = '+00:00'")
				defer run(t, c, "SET GLOBAL binlog_row_metadata = "+before)
				checkColumns(t, s, name)
			})
		}
	})
}

func checkColumns(t *testing.T, s target, name string) {
	c := s.session(t)
	run(t, c, "USE "+name, "SET sql_mode = ''", "SET time_zone = '+00:00'")
	var definitions []string
	var cases []columnCase
	for _, cc := range columnCases {
		if cc.only != "" && cc.only != string(s.Flavor()) {
			continue
		}
		definitions = append(definitions, column(len(cases))+" "+cc.definition)
		cases = append(cases, cc)
	}
	run(t, c, "CREATE TABLE wide (id INT PRIMARY KEY, "+strings.Join(definitions, ", ")+")")
	start := s.end(t, c)
	id := 0
	var wantRows [][]string
	for i, cc := range cases {
		as := cc.as
		if as == "" {
			as = "%s"
		}
		for _, v := range cc.values {
			id++
			n := itoa(id)
			run(t, c, "INSERT INTO wide (id, "+column(i)+") VALUES ("+n+", "+v+")")
			rows, err := c.Query(t.Context(), "SELECT "+strings.ReplaceAll(as, "%s", column(i))+" FROM wide WHERE id = "+n)
			if err != nil {
				t.Fatal(err)
			}
			want := "NULL"
			if rows[0][0].Valid {
				want = rows[0][0].String
			}
			wantRows = append(wantRows, []string{column(i), cc.definition, want, itoa(i + 1)})
		}
	}
	cfg := ReaderConfig{Want: in(name), Describe: Catalog(s.session(t))}
	r := NewReader(s.stream(t, StreamConfig{Start: Start{Position: start}, NonBlocking: true}), cfg)
	seen := 0
	for {
		rec, err := r.Next(t.Context())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if rec.Kind != Changes {
			continue
		}
		for rec.Rows.Next() {
			want := wantRows[seen]
			at := atoi(t, want[3])
			v := rec.Rows.After[at]
			got := string(v.AppendText(nil))
			if v.IsNull() {
				got = "NULL"
			}
			if got != want[2] {
				t.Errorf("%s: %.80q, want %.80q", want[1], got, want[2])
			}
			if id := rec.Rows.After[0].Int64(); id != int64(seen+1) {
				t.Fatalf("row %d, want %d", id, seen+1)
			}
			if col := rec.Rows.Table.Columns[at]; col.Name != want[0] {
				t.Errorf("column %d is %q, want %q", at, col.Name, want[0])
			}
			seen++
		}
		if err := rec.Rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
	if seen != len(wantRows) {
		t.Errorf("%d rows, want %d", seen, len(wantRows))
	}
}
