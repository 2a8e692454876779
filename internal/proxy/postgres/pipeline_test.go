package postgres_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// Messages up to one Sync may commit in their middle and fail behind that, and end
// all prepared statements before they name some. The answers are those of a direct
// connection, and no other client finds anything of it.
func TestPipelinesThatCommitOrForgetInTheirMiddle(t *testing.T) {
	t.Parallel()
	step := func(sql string) []byte { return slices.Concat(parse("", sql), bind("", ""), execute("", 0)) }
	use := func(name string) []byte { return slices.Concat(bind("", name), execute("", 0)) }
	one := slices.Concat(parse("s1", "SELECT 1"), sync())
	show := slices.Concat(step("SHOW work_mem"), sync())
	fails := slices.Concat(step("SELECT 1/0"), sync())
	all := func(parts ...[]byte) []byte { return slices.Concat(parts...) }
	db := database(t) // what they do is of their sessions
	proxyFor := inTurn(func() *weir { return start(t, db, func(c *postgres.Config) { c.PoolSize = 4 }) })
	for _, c := range []struct {
		name  string
		steps [][]byte
	}{
		{"a statement is used behind DEALLOCATE ALL", [][]byte{one, all(step("DEALLOCATE ALL"), use("s1"), sync()), all(use("s1"), sync())}},
		{"its name is taken again", [][]byte{one, all(step("DEALLOCATE ALL"), parse("s1", "SELECT 22"), use("s1"), sync()), all(use("s1"), sync())}},
		{"its text is parsed again", [][]byte{one, all(step("DEALLOCATE ALL"), parse("s1", "SELECT 1"), use("s1"), sync()), all(use("s1"), sync())}},
		{"behind a Flush", [][]byte{one, all(step("DEALLOCATE ALL"), flush(), use("s1"), sync()), all(use("s1"), sync())}},
		{"DEALLOCATE ALL, and a failure", [][]byte{one, all(step("DEALLOCATE ALL"), fails), all(use("s1"), sync())}},
		{"DEALLOCATE ALL executed last", [][]byte{one, all(parse("d", "DEALLOCATE ALL"), bind("p", "d"), bind("q", "s1"), execute("q", 0), execute("p", 0), use("s1"), sync()), all(use("s1"), sync())}},
		{"DEALLOCATE ALL bound, not executed", [][]byte{one, all(parse("d", "DEALLOCATE ALL"), bind("p", "d"), use("s1"), sync()), all(use("s1"), sync())}},
		{"DEALLOCATE ALL as a text", [][]byte{one, all(query("DEALLOCATE ALL"), use("s1"), sync(), parse("s1", "SELECT 2"), use("s1"), sync())}},
		{"DEALLOCATE ALL with PREPARE", [][]byte{query("DEALLOCATE ALL; PREPARE s1 AS SELECT 'planted'"), query("EXECUTE s1")}},
		{"DEALLOCATE, and a failure", [][]byte{query("PREPARE s1 AS SELECT 1"), all(step("DEALLOCATE s1"), fails), query("EXECUTE s1")}},
		{"DISCARD ALL with a lock", [][]byte{all(step("DISCARD ALL"), step("SELECT pg_advisory_lock(42)"), sync())}},
		{"DISCARD ALL with a setting", [][]byte{query("SET work_mem = '3MB'"), all(step("DISCARD ALL"), step("SET work_mem = '33MB'"), sync()), show}},
		{"DISCARD ALL, and a failure", [][]byte{query("SET work_mem = '3MB'"), all(step("DISCARD ALL"), fails), show}},
		{"COMMIT, and a failure", [][]byte{query("BEGIN"), query("SET work_mem = '44MB'"), all(step("COMMIT"), fails), show}},
		{"COMMIT, and a failure, as a text", [][]byte{query("BEGIN"), query("SET work_mem = '45MB'"), query("COMMIT; SELECT 1/0"), show}},
		{"a whole transaction, and a failure", [][]byte{all(step("BEGIN"), step("SET work_mem = '46MB'"), step("COMMIT"), fails), show}},
		{"COMMIT of what was no transaction yet", [][]byte{all(step("SET work_mem = '47MB'"), step("COMMIT"), fails), show}},
		{"RESET, COMMIT, and a failure", [][]byte{query("SET work_mem = '48MB'"), all(step("BEGIN"), step("RESET work_mem"), step("COMMIT"), fails), show}},
		{"RESET, and a failure, without another value", [][]byte{all(step("RESET work_mem"), fails), show, query("RESET work_mem"), show}},
		{"RESET, and a failure", [][]byte{query("SET work_mem = '49MB'"), all(step("RESET work_mem"), fails), show}},
		{"a setting behind ROLLBACK", [][]byte{query("BEGIN"), all(step("ROLLBACK"), step("SET work_mem = '55MB'"), sync()), show}},
		{"COMMIT AND CHAIN", [][]byte{all(step("BEGIN"), step("SET work_mem = '52MB'"), step("COMMIT AND CHAIN"), step("SET work_mem = '53MB'"), sync()), query("ROLLBACK"), show}},
		{"ROLLBACK TO", [][]byte{query("BEGIN"), query("SET work_mem = '61MB'"), query("SAVEPOINT a"), query("SET work_mem = '62MB'"), all(step("ROLLBACK TO a"), step("COMMIT"), sync()), show}},
		{"settings in one text", [][]byte{query("SET work_mem = '64MB'; SET app.planted TO here; RESET work_mem; SET LOCAL work_mem = '65MB'"), show, query("SHOW app.planted")}},
		{"settings in one text, and a failure", [][]byte{query("SET work_mem = '66MB'; SELECT 1/0"), show}},
		{"settings and ends in one text", [][]byte{query("SET work_mem = '67MB'; COMMIT; SET work_mem = '68MB'; ROLLBACK; SELECT 1/0"), show}},
		{"a pool's reset", [][]byte{query("SET work_mem = '69MB'"), query("SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL"), show}},
		{"a setting of its own", [][]byte{all(step("BEGIN"), step("SET app.planted = 'here'"), step("COMMIT"), fails), query("SHOW app.planted")}},
		{"a temporary table", [][]byte{all(step("BEGIN"), step("CREATE TEMP TABLE planted AS SELECT 5"), step("COMMIT"), fails), query("SELECT * FROM planted")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := proxyFor(t)
			// RESET goes back to the client's own value.
			mine := pgwire.Param{Name: "options", Value: "-c work_mem=5MB"}
			answers := func(conn *wire) (out []string) {
				for _, s := range c.steps {
					conn.send(s)
					for range unitsIn(s) {
						got := conn.ready()
						out = append(out, render(got))
						if e := errorIn(got); e != nil {
							out = append(out, e.Message)
						}
					}
				}
				return out
			}
			client := w.wire(mine)
			alone := dialWire(t, server(t).Addr(), db, mine)
			direct := answers(alone)
			alone.send(query("DISCARD ALL")) // gives its lock back
			alone.ready()
			through := answers(client)
			if !slices.Equal(direct, through) {
				t.Errorf("direct  %q\nthrough %q", direct, through)
			}
			nothingPlanted(t, w)
			client.close()
			nothingPlanted(t, w)
		})
	}
}

// Drivers' pools reset their connections with several statements in one text. That pins no
// session, and neither do settings in such a text.
func TestSettingsOfSeveralStatementsPinNobody(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	for _, text := range []string{
		"SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL;",
		"SET work_mem = '3MB'; SET statement_timeout TO 5000; SELECT 1",
		"SET work_mem = '5MB'; SELECT 1/0",
	} {
		c := w.wire()
		c.ask(text)
		eventually(t, "nobody is pinned by "+text, func() bool { return w.pool().Pinned == 0 && w.pool().Owned == 0 })
		if n := w.pool().Pins["set"]; n != 0 {
			t.Errorf("%s: %d pins", text, n)
		}
	}
}

// nothingPlanted has other clients use every backend that they can get.
func nothingPlanted(t *testing.T, w *weir) {
	t.Helper()
	var others []*wire
	for range 2 { // of four one is pinned and one is kept for reads
		o := w.wire()
		o.send(query("BEGIN"))
		o.ready()
		others = append(others, o)
	}
	for i, o := range others {
		got := o.ask(`SELECT current_setting('work_mem') AS m, current_setting('app.planted', true) AS p,
			(SELECT count(*) FROM pg_prepared_statements WHERE from_sql) AS s,
			(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS l, to_regclass('pg_temp.planted') AS t`)
		if !strings.Contains(got, "(4MB,null,0,0,null)") {
			t.Errorf("another client sees %s", got)
		}
		for n, sql := range []string{"SELECT 1", "SELECT 22", "SELECT 2", fmt.Sprintf("SELECT %d", 100+i)} {
			name := fmt.Sprint("n", n)
			o.send(parse(name, sql), bind("", name), execute("", 0), sync())
			if e := errorIn(o.ready()); e != nil {
				t.Errorf("another client's %s: %v", sql, e)
			}
		}
		o.close()
	}
}

// unitsIn counts the messages that a ReadyForQuery answers.
func unitsIn(messages []byte) (n int) {
	for len(messages) > 0 {
		typ, size, _ := pgwire.Peek(messages)
		if bytes.IndexByte([]byte{pgwire.ClientSync, pgwire.ClientQuery}, typ) >= 0 {
			n++
		}
		messages = messages[size:]
	}
	return n
}
