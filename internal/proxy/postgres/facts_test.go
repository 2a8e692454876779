package postgres_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/postgres"
)

// The server spells a time in the largest unit that divides it.
func TestTimeoutsAsTheServerSpellsThem(t *testing.T) {
	t.Parallel()
	server(t)
	for _, ms := range []int{0, 1, 999, 1000, 1500, 60_000, 90_000, 3_600_000, 5_400_000, 86_400_000, math.MaxInt32} {
		results, err := askServer(t.Context(), fmt.Sprintf("SELECT pg_catalog.set_config('lock_timeout', '%d', true)", ms))
		if err != nil {
			t.Fatal(err)
		}
		spelt := string(results[0].Rows[0][0])
		if got, ok := postgres.ReadTimeout(spelt); !ok || got != time.Duration(ms)*time.Millisecond {
			t.Errorf("%s reads as %v, %t, and is %d ms", spelt, got, ok, ms)
		}
	}
}

// PostgreSQL 17 gave the function that flushes the log a fourth argument, with
// a default. The lane that rests on it must be on either way.
func TestTheSoloLaneIsOnWhicheverArgumentsTheFlushHas(t *testing.T) {
	t.Parallel()
	for _, form := range []struct{ name, setup string }{
		{"as the server has it", "SELECT 1"},
		{"with a fourth argument", `SET allow_system_table_mods = on;
			DO $$ BEGIN IF current_setting('server_version_num')::int < 170000 THEN
			ALTER FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, text) RENAME TO emit_before;
			CREATE FUNCTION pg_catalog.pg_logical_emit_message(transactional boolean, prefix text, message text, flush boolean DEFAULT false)
			RETURNS pg_lsn LANGUAGE sql AS 'SELECT pg_catalog.emit_before(transactional, prefix, message)'; END IF; END $$`},
	} {
		t.Run(form.name, func(t *testing.T) {
			t.Parallel()
			db := database(t, form.setup, "CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t SELECT g, 0 FROM generate_series(1, 16) g")
			w := start(t, db, oneLane(func(c *postgres.Config) { c.ShareKnown(nil) })) // others have that function
			update := func(id int) string { return fmt.Sprintf("/* batch */ UPDATE t SET n = n + 1 WHERE id = %d", id) }
			clients := w.clients(8, update(16))
			w.mustGather("solo", func(int) {
				var messages [][]byte
				for i := range clients {
					messages = append(messages, run(update(i+1)))
				}
				for i, answer := range together(clients, messages) {
					if e := errorIn(answer); e != nil {
						t.Fatalf("client %d: %v", i, e)
					}
				}
			})
		})
	}
}
