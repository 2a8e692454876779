package mysql_test

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// Settings and prepared statements in the middle of a text are their client's alone, as those of
// the first statement are.
func TestLaterStatementsOfAText(t *testing.T) {
	t.Parallel()
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		db := databaseOn(t, server)
		for _, steps := range [][]string{
			{"SELECT 1; SET SESSION session_track_system_variables = ''", "SET SESSION time_zone = '+09:00'"},
			{"SELECT 1; SET @@session.session_track_state_change = OFF, @@session.session_track_system_variables = 'time_zone'", "SET SESSION sql_mode = ''"},
			{"SELECT 1; SET NAMES latin1 COLLATE latin1_german2_ci", "SELECT 2"},
			{"SET NAMES latin1 COLLATE latin1_german2_ci; SET NAMES utf8mb4; SELECT 1", "SELECT 2"},
			{"SET NAMES latin1 COLLATE latin1_german2_ci; SELEKT; SET NAMES utf8mb4", "SELECT 2"},
			{"SELECT 1; PREPARE leak FROM 'SELECT 42'", "PREPARE b FROM 'SELECT 2'", "DEALLOCATE PREPARE b"},
			{"DEALLOCATE PREPARE b; PREPARE leak FROM 'SELECT 42'", "PREPARE b FROM 'SELECT 2'", "DEALLOCATE PREPARE b; PREPARE leak FROM 'SELECT 43'", "PREPARE c FROM 'SELECT 3'", "DEALLOCATE PREPARE c"},
		} {
			w := startFor(t, server, db, twoBackends)
			multi := func(c *mywire.ConnectConfig) {
				c.Caps = mywire.WantedCaps | mywire.CapMultiStatements
			}
			through, past, other, fresh := w.speaker(multi), speakerTo(t, server.Addr(), db, multi), w.speaker(multi), speakerTo(t, server.Addr(), db, multi)
			for _, text := range steps {
				if got, want := through.ask(text), past.ask(text); got != want {
					t.Errorf("%s: %s, direct %s", text, got, want)
				}
			}
			probes := []string{"SELECT @@time_zone, @@sql_mode, @@character_set_client, @@collation_connection", "EXECUTE leak"}
			for range 3 { // on whichever connection
				for _, q := range probes {
					if got, want := other.ask(q), fresh.ask(q); got != want {
						t.Errorf("another client after %q: %s: %s, direct %s", steps, q, got, want)
					}
					if got, want := through.ask(q), past.ask(q); got != want {
						t.Errorf("after %q: %s: %s, direct %s", steps, q, got, want)
					}
				}
			}
		}
	})
}

// COM_RESET_CONNECTION leaves a session's role as it is.
func TestRolesEndWithTheirSession(t *testing.T) {
	t.Parallel()
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		db := databaseOn(t, server)
		role := db + "_role"
		w := startFor(t, server, db, func(c *mysql.Config) { c.PoolSize = 1 })
		mine := w.speaker(nil)
		user := strings.ReplaceAll(mine.value("SELECT CURRENT_USER()"), "@", "'@'")
		sqlOn(t, server, "CREATE ROLE "+role, "GRANT "+role+" TO '"+user+"'")
		t.Cleanup(func() { sqlOn(t, server, "DROP ROLE "+role) })
		_ = mine.Close()
		const ask = "SELECT COALESCE(CURRENT_ROLE(), 'NONE')"
		roads := []string{"SET ROLE " + role}
		if isMariaDB(server) { // MySQL lets neither a procedure nor what is prepared set one
			sqlOn(t, server, "CREATE PROCEDURE "+db+".sets() BEGIN SET ROLE "+role+"; END",
				"CREATE PROCEDURE "+db+".hides() BEGIN EXECUTE IMMEDIATE CONCAT('SET ROLE ', '"+role+"'); END")
			roads = append(roads, "CALL sets()", "CALL hides()", "BEGIN NOT ATOMIC SET ROLE "+role+"; END", "PREPARE p FROM 'SET ROLE "+role+"'; EXECUTE p")
		}
		for _, road := range roads {
			mine := w.speaker(func(c *mywire.ConnectConfig) { c.Caps = mywire.WantedCaps | mywire.CapMultiStatements })
			if got := mine.ask(road); strings.Contains(got, "ERROR") {
				t.Logf("%s: %s", road, got)
			}
			before := mine.value(ask)
			mine.send(mywire.AppendResetConnection(nil))
			mine.answerTo(mywire.ComResetConnection)
			if got := mine.value(ask); got != before {
				t.Errorf("%s: the role is %s, and %s after a reset, which leaves it", road, before, got)
			}
			_ = mine.Close()
			other := w.speaker(nil)
			if got := other.value(ask); got != "NONE" {
				t.Errorf("%s: another client has the role %s", road, got)
			}
			_ = other.Close()
		}
	})
}
