package myscan

import "testing"

var benchmarks = []struct{ name, sql string }{
	{"point-select", "SELECT abalance FROM pgbench_accounts WHERE aid = 12345"},
	{"insert", "INSERT INTO orders (id, customer, amount) VALUES (?, ?, ?)"},
	{"insert-literals", "INSERT INTO orders (id, customer, amount) VALUES (1, 'a name', 12.50)"},
	{"hinted-insert", "/* batch:10 file:src/orders.go line:42 */ INSERT INTO orders (id, customer, amount) VALUES (?, ?, ?)"},
	{"begin", "BEGIN"},
	{"set", "SET NAMES utf8mb4, time_zone = '+00:00'"},
	{"join", "SELECT o.id, c.name, sum(l.price * l.quantity) AS total FROM orders o JOIN customers c ON c.id = o.customer " +
		"JOIN lines l ON l.order_id = o.id WHERE o.created >= now() - interval 7 day AND c.country IN ('NL', 'BE', 'DE') " +
		"GROUP BY o.id, c.name HAVING sum(l.price) > 100 ORDER BY total DESC LIMIT 20"},
}

func BenchmarkScan(b *testing.B) {
	for _, c := range benchmarks {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(c.sql)))
			for b.Loop() {
				Scan(c.sql, Mode{})
			}
		})
	}
}

func BenchmarkInsert(b *testing.B) {
	const sql = "INSERT INTO orders (id, customer, amount) VALUES (1, 'a name', 12.50)"
	b.ReportAllocs()
	for b.Loop() {
		Insert(sql, Mode{})
	}
}

// BenchmarkText is all that is read of a text that is to join a group.
func BenchmarkText(b *testing.B) {
	for _, c := range benchmarks {
		b.Run(c.name, func(b *testing.B) {
			var t Text
			b.ReportAllocs()
			for b.Loop() {
				t.Read(c.sql, Mode{})
				t.Scan()
				t.Names(func(string, bool) bool { return true })
				t.Fingerprint()
				t.Insert()
				t.Target()
			}
		})
	}
}

// BenchmarkTextLexed is the same by the functions, each of which lexes the text.
func BenchmarkTextLexed(b *testing.B) {
	for _, c := range benchmarks {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Scan(c.sql, Mode{})
				Names(c.sql, Mode{}, func(string, bool) bool { return true })
				Fingerprint(c.sql, Mode{})
				Insert(c.sql, Mode{})
				Target(c.sql, Mode{})
			}
		})
	}
}

func BenchmarkFingerprint(b *testing.B) {
	for _, c := range benchmarks {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Fingerprint(c.sql, Mode{})
			}
		})
	}
}
