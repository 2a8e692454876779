package mysql_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// MariaDB Connector/J sends this after its login, as its versions 3.4.1 and 3.5.1 do to MariaDB
// 10.11; to 11.1 and later the variable is transaction_isolation.
const (
	connectorJ341 = "set sql_mode=CONCAT(@@sql_mode,',STRICT_TRANS_TABLES'),session_track_system_variables = CONCAT(@@global.session_track_system_variables,',tx_isolation'),time_zone='+00:00',NAMES utf8mb4"
	connectorJ351 = "set sql_mode=CONCAT(@@sql_mode,',STRICT_TRANS_TABLES'),session_track_system_variables = CONCAT(@@global.session_track_system_variables,',tx_isolation'),NAMES utf8mb4"
)

// A client that chooses of which variables it is told shares backends all the same, is
// told of these and of no others, and is asked about its own list.
func TestClientsChooseWhatTheyAreToldOf(t *testing.T) {
	t.Parallel()
	onFlavors(t, clientsChoose)
}

// statementID is MySQL's count of statements, which those of other sessions move, too.
var statementID = regexp.MustCompile(`statement_id=\d+`)

func clientsChoose(t *testing.T, server *lab.MySQL) {
	// The variable's name is another one since 11.1, which has the old one as well.
	connectorJ341, connectorJ351 := connectorJ341, connectorJ351
	if c := speakerTo(t, server.Addr(), "", nil); !strings.HasPrefix(c.ask("SELECT @@transaction_isolation"), "ERR") {
		for _, text := range []*string{&connectorJ341, &connectorJ351} {
			*text = strings.ReplaceAll(*text, "tx_isolation", "transaction_isolation")
		}
	}
	state := []string{
		"SELECT @@session_track_system_variables", "SHOW VARIABLES LIKE 'session_track_system%'",
		"SELECT @@tx_isolation, @@sql_mode, @@time_zone, @@lc_time_names, @@character_set_client, @@collation_connection, @@autocommit",
	}
	for _, script := range []struct {
		name   string
		pinned bool
		steps  []string
	}{
		{"unset", false, nil},
		{"Connector/J 3.4.1", false, []string{connectorJ341, "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE", "SET tx_isolation = 'READ-COMMITTED'", "SET time_zone = '+01:00'", "SET sql_mode = ''", connectorJ341}},
		{"Connector/J 3.5.1", false, []string{connectorJ351, "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED", "set autocommit=0", "SELECT 1", "COMMIT", "set autocommit=1"}},
		{"in a transaction", false, []string{"BEGIN", "SELECT 1", connectorJ351, "SET tx_isolation = 'SERIALIZABLE'", "ROLLBACK"}},
		{"from what it is", false, []string{
			"SET time_zone = '+02:00', session_track_system_variables = CONCAT(@@session_track_system_variables, ',lc_time_names'), lc_time_names = 'fr_FR'",
			"SET lc_time_names = 'de_DE'", "SET session_track_system_variables = CONCAT(@@session.session_track_system_variables, ',sql_mode')", "SET sql_mode = 'ANSI'", "SET sql_mode = 'ANSI'",
		}},
		{"none", false, []string{"SET session_track_system_variables = ''", "SET time_zone = '+03:00'", "SET NAMES latin1", "SET SESSION session_track_system_variables = DEFAULT", "SET NAMES utf8mb4 COLLATE utf8mb4_bin"}},
		{"itself", false, []string{"SET @@session.session_track_system_variables = 'session_track_system_variables,sql_mode'", "SET @@session_track_system_variables = 'session_track_system_variables'", "SET sql_mode = ''"}},
		{"names", confuses(server), []string{"SET NAMES latin1, session_track_system_variables = 'character_set_client,collation_connection', collation_connection = latin1_bin", "SET NAMES utf8mb4", "SET collation_connection = utf8mb4_bin"}},
		{"by another name", confuses(server), []string{"SET session_track_system_variables = 'sql_mode,tx_isolation'", "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE", "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"}},
		{"refused", true, []string{"SET session_track_system_variables = 'nonsense'", "SET session_track_system_variables = 7", "SET session_track_system_variables = 'sql_mode', nonsense = 1", "SET sql_mode = ''"}},
		{"warnings", false, []string{"SELECT CAST('x' AS SIGNED)", "SELECT @@session_track_system_variables"}},
		{"everything", true, []string{"SET session_track_system_variables = '*'", "SET sql_mode = ''", "SET lc_time_names = 'de_DE'"}},
		{"by a procedure", true, []string{"CALL tracks()"}},
		{"and a user variable", true, []string{"SET @x = 1, session_track_system_variables = 'sql_mode'", "SET sql_mode = ''"}},
		{"by a query", true, []string{"SET session_track_system_variables = (SELECT 'sql_mode')", "SET sql_mode = ''"}},
		{"prepared", true, []string{"prepared:SET session_track_system_variables = 'sql_mode'", "SET sql_mode = ''"}},
	} {
		t.Run(script.name, func(t *testing.T) {
			t.Parallel()
			db := databaseOn(t, server, append(slices.Clone(stateSetup), "CREATE PROCEDURE tracks() SET SESSION session_track_system_variables = 'sql_mode'")...)
			w := startFor(t, server, db, twoBackends)
			caps := func(c *mywire.ConnectConfig) { c.Caps = mywire.WantedCaps | mywire.CapSessionTrack }
			direct, mine, same := speakerTo(t, server.Addr(), db, caps), w.speaker(caps), w.speaker(caps)
			churn := newChurner(w, nil)
			run := func(c speaker, sql string) string {
				if text, ok := strings.CutPrefix(sql, "prepared:"); ok {
					return c.askPrepared(text)
				}
				return c.ask(sql)
			}
			other := same.ask(state[0])
			for _, sql := range append(script.steps, state...) {
				if !isMariaDB(server) {
					sql = strings.ReplaceAll(sql, "tx_isolation", "transaction_isolation")
				}
				want := statementID.ReplaceAllString(run(direct, sql), "statement_id=N")
				if got := statementID.ReplaceAllString(run(mine, sql), "statement_id=N"); got != want {
					t.Errorf("%s\nby way of weir: %s\ndirect:         %s", sql, got, want)
				}
				churn.run()
			}
			if pinned := w.pool().Pinned > 0; pinned != script.pinned {
				t.Errorf("pinned: %v %v, want %v", pinned, w.pool().Pins, script.pinned)
			}
			if got := same.ask(state[0]); got != other {
				t.Errorf("another client is told %s", got)
			}
			for _, c := range []speaker{direct, mine} {
				c.send(mywire.AppendResetConnection(nil))
				_, _ = c.answerTo(mywire.ComResetConnection)
			}
			for _, sql := range append([]string{"SET time_zone = '+04:00'", "SET sql_mode = ''"}, state...) {
				if !isMariaDB(server) {
					sql = strings.ReplaceAll(sql, "tx_isolation", "transaction_isolation")
				}
				want := direct.ask(sql)
				if got := mine.ask(sql); got != want {
					t.Errorf("after a reset, %s\nby way of weir: %s\ndirect:         %s", sql, got, want)
				}
			}
		})
	}
}
