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
