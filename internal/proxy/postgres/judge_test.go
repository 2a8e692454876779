package postgres

import (
	"testing"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// BenchmarkJudge is what is read of the text of each simple query.
func BenchmarkJudge(b *testing.B) {
	x := &index{names: map[string]consequence{
		"nextval":    {read: sqlscan.EffSequence},
		"set_config": {read: sqlscan.EffSetConfig},
		"orders":     {write: sqlscan.EffSequence},
	}}
	for _, c := range []struct{ name, sql string }{
		{"lookup", "SELECT abalance FROM pgbench_accounts WHERE aid = 12345"},
		{"insert", "/* batch */ INSERT INTO orders (id, customer, amount) VALUES (7, 'a name', 12.50)"},
	} {
		b.Run(c.name, func(b *testing.B) {
			var t sqlscan.Text
			b.ReportAllocs()
			for b.Loop() {
				t.Read(c.sql)
				x.judge(scan(c.sql, &t), &t)
			}
		})
	}
}

// Columns are often named as what hides bodies: that is no reason to read the catalogue.
func TestColumnsNamedLikeKindsOfObjects(t *testing.T) {
	t.Parallel()
	x := &index{names: map[string]consequence{"f": {read: sqlscan.EffUnknownFunc, write: sqlscan.EffUnknownFunc}}}
	for sql, want := range map[string]bool{
		`CREATE TABLE a (id bigserial, "type" text, language text, domain text)`: false,
		`CREATE UNIQUE INDEX ON a (type)`:                                        false,
		`ALTER TABLE a ALTER COLUMN id TYPE bigint`:                              false,
		`ALTER TABLE a ALTER COLUMN id TYPE bigint USING f()`:                    true,
		`CREATE TYPE type AS (a int)`:                                            true,
		`CREATE TABLE a (id int); CREATE TYPE b AS (a int)`:                      true,
		`CREATE TRIGGER x BEFORE INSERT ON a EXECUTE FUNCTION g()`:               true,
	} {
		var text sqlscan.Text
		text.Read(sql)
		got := x.judge(scan(sql, &text), &text)
		if got.hidden != want {
			t.Errorf("%s: the catalogue is read: %v, want %v", sql, got.hidden, want)
		}
	}
}
