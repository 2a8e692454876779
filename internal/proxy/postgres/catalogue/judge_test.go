package catalogue

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// BenchmarkJudge is what is read of the text of each simple query.
func BenchmarkJudge(b *testing.B) {
	x := &Index{names: map[string]NameEffects{
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
				x.Judge(t.Scan(), &t)
			}
		})
	}
}

// A function with an effect at each call is no read that may run twice, share a connection with
// others or be answered from a cache.
func TestFunctionsThatDoSomethingAreNoReads(t *testing.T) {
	t.Parallel()
	for _, call := range []string{
		"pg_notify('a', 'b')", "nextval('s')", "setval('s', 1)", "lo_creat(1)", "lo_get(1)", "lo_unlink(1)", "lowrite(0, '')",
		"pg_advisory_lock(1)", "pg_advisory_unlock(1)", "pg_advisory_xact_lock(1)", "pg_try_advisory_xact_lock_shared(1)",
		"pg_logical_emit_message(true, 'a', 'b')", "pg_terminate_backend(1)", "pg_cancel_backend(1)", "pg_reload_conf()", "pg_switch_wal()",
		"pg_create_restore_point('a')", "pg_rotate_logfile()", "pg_promote()", "pg_stat_reset()", "pg_sleep(1)", "set_config('a.b', 'c', true)", "setseed(0)",
	} {
		name, _, _ := strings.Cut(call, "(")
		e := builtinEffects(name)
		x := &Index{names: map[string]NameEffects{name: {read: e, write: e}}}
		var text sqlscan.Text
		sql := "SELECT " + call
		text.Read(sql)
		if got := x.Judge(text.Scan(), &text); got.Effects == 0 {
			t.Errorf("%s is taken for a read: effects %v", sql, got.Effects)
		}
	}
}

// Columns are often named as what hides bodies: that is no reason to read the catalogue.
func TestColumnsNamedLikeKindsOfObjects(t *testing.T) {
	t.Parallel()
	x := &Index{names: map[string]NameEffects{"f": {read: sqlscan.EffUnknownFunc, write: sqlscan.EffUnknownFunc}}}
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
		got := x.Judge(text.Scan(), &text)
		if got.Hidden != want {
			t.Errorf("%s: the catalogue is read: %v, want %v", sql, got.Hidden, want)
		}
	}
}
