package sqlscan

import "testing"

var benchmarks = []struct{ name, sql string }{
	{"point-select", "SELECT abalance FROM pgbench_accounts WHERE aid = 12345"},
	{"insert", "INSERT INTO orders (id, customer, amount) VALUES ($1, $2, $3)"},
	{"hinted-insert", "/* batch:10 file:src/orders.go line:42 */ INSERT INTO orders (id, customer, amount) VALUES ($1, $2, $3) RETURNING id"},
	{"begin", "BEGIN"},
	{"join", "SELECT o.id, c.name, sum(l.price * l.quantity) AS total FROM orders o JOIN customers c ON c.id = o.customer " +
		"JOIN lines l ON l.order_id = o.id WHERE o.created >= now() - interval '7 days' AND c.country IN ('NL', 'BE', 'DE') " +
		"GROUP BY o.id, c.name HAVING sum(l.price) > 100 ORDER BY total DESC LIMIT 20"},
}

func BenchmarkScan(b *testing.B) {
	for _, c := range benchmarks {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(c.sql)))
			for b.Loop() {
				Scan(c.sql)
			}
		})
	}
}

func BenchmarkInsert(b *testing.B) {
	const sql = "INSERT INTO orders (id, customer, amount) VALUES (1, 'a name', 12.50)"
	b.ReportAllocs()
	for b.Loop() {
		Insert(sql)
	}
}

func BenchmarkAppendTuple(b *testing.B) {
	shape, ok := Insert("INSERT INTO orders (id, customer, amount) VALUES ($1, $2, $3)")
	if !ok {
		b.Fatal("refused")
	}
	buf := make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		buf = shape.AppendTuple(buf[:0], 300)
	}
}

// BenchmarkText is all that is read of a text that is to join a group.
func BenchmarkText(b *testing.B) {
	table := map[string]int{"nextval": 1, "set_config": 2, "pg_sleep": 3}
	for _, c := range benchmarks {
		b.Run(c.name, func(b *testing.B) {
			var t Text
			b.ReportAllocs()
			for b.Loop() {
				t.Read(c.sql)
				t.Scan()
				t.Settings()
				NamesIn(&t, table, func(string, int) {})
				t.Fingerprint()
				t.Insert()
			}
		})
	}
}

func BenchmarkFingerprint(b *testing.B) {
	for _, c := range benchmarks {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Fingerprint(c.sql)
			}
		})
	}
}
