package mysql_test

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// The tests of what belongs to a session: all of them run on MariaDB and, where
// it is installed, on MySQL.
func TestSessionState(t *testing.T) {
	t.Parallel()
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		for _, c := range []struct {
			name string
			run  func(t *testing.T, server *lab.MySQL)
		}{
			{"scripts are answered as direct", scriptsAreAnsweredAsDirect},
			{"pins appear, hold and end", pinsAppearHoldAndEnd},
			{"vanished clients leave nothing", vanishedClientsLeaveNothing},
			{"mixed scripts are answered as direct", mixedScriptsAreAnsweredAsDirect},
			{"sessions without a database", sessionsWithoutDatabase},
			{"modes keep what they say", modesKeepWhatTheySay},
			{"questions about the last statement are never wrong", questionsAboutTheLastStatementAreNeverWrong},
			{"sequences are never another's", sequencesAreNeverAnothers},
			{"prepared statements are shared", preparedStatementsAreShared},
			{"prepared statements keep their settings", preparedStatementsKeepTheirSettings},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.run(t, server)
			})
		}
	})
}

// onFlavors runs f with the shared MariaDB and with a MySQL.
func onFlavors(t *testing.T, f func(t *testing.T, server *lab.MySQL)) {
	t.Run("mariadb", func(t *testing.T) {
		t.Parallel()
		f(t, server(t))
	})
	t.Run("mysql", func(t *testing.T) {
		t.Parallel()
		f(t, labtest.MySQL(t, serverConfig()))
	})
}

func isMariaDB(server *lab.MySQL) bool { return server.Flavor() == lab.FlavorMariaDB }

// needsMariaDB skips a test where the shared server is MySQL, which lacks something.
func needsMariaDB(t *testing.T, lacks string) {
	t.Helper()
	if !isMariaDB(server(t)) {
		t.Skip("MySQL has no " + lacks)
	}
}

// TestSettingsOfOneAreNotAnothers: what a client has set, back and forth, is for the next on
// its connection what a login finds.
func TestSettingsOfOneAreNotAnothers(t *testing.T) {
	t.Parallel()
	flags := []string{"foreign_key_checks", "unique_checks", "low_priority_updates"}
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		seen := "SELECT CONCAT_WS(' ', @@" + strings.Join(flags, ", @@") + ")"
		w := startFor(t, server, databaseOn(t, server), func(c *mysql.Config) { c.PoolSize = 1 })
		setter, other := w.dial(nil), w.dial(nil)
		want := other.one(seen)
		for _, name := range flags {
			for _, value := range []string{"0", "1"} {
				setter.must("SET " + name + " = " + value)
				if got := other.one(seen); got != want {
					t.Errorf("after SET %s = %s another client has %s, not %s", name, value, got, want)
				}
			}
		}
		if n := w.pool().Opened; n != 1 {
			t.Errorf("%d connections were opened", n)
		}
	})
}

// TestTracesOfOneAreNotAnothers: what the server has traced or measured of a client's
// statements, texts and all, is shown to that client alone.
func TestTracesOfOneAreNotAnothers(t *testing.T) {
	t.Parallel()
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		w := startFor(t, server, databaseOn(t, server, "CREATE TABLE t (a INT)"), func(c *mysql.Config) { c.PoolSize = 2 })
		const secret = "SELECT a FROM t WHERE a = 4711"
		for _, tc := range []struct{ on, off, show string }{
			{"SET optimizer_trace = 'enabled=on'", "SET optimizer_trace = 'enabled=off'", "SELECT QUERY FROM information_schema.OPTIMIZER_TRACE"},
			{"SET profiling = 1", "SET profiling = 0", "SHOW PROFILES"},
		} {
			for _, leave := range []bool{false, true} {
				c, others := w.dial(nil), w.dials(2)
				c.must(tc.on)
				c.try(c.query(secret))
				others[0].try(others[0].query("SELECT 1 FROM t"))
				if r := c.try(c.query(tc.show)); !strings.Contains(r.text, "4711") {
					t.Errorf("after %s: its client is shown %s", tc.on, r.text)
				}
				c.must(tc.off)
				if leave {
					_ = c.Close()
				}
				for _, other := range others {
					if r := other.try(other.query(tc.show)); strings.Contains(r.text, "4711") {
						t.Errorf("after %s another client is shown %s", tc.on, r.text)
					}
					other.must(tc.on)
					if r := other.try(other.query(tc.show)); strings.Contains(r.text, "4711") {
						t.Errorf("after %s another client that sets it, too, is shown %s", tc.on, r.text)
					}
					_ = other.Close()
				}
				_ = c.Close()
			}
		}
	})
}

// TestTracesOfOneStatementAreNotAnothers: the same where it is traced alone.
func TestTracesOfOneStatementAreNotAnothers(t *testing.T) {
	t.Parallel()
	needsMariaDB(t, "SET STATEMENT")
	const traced = "SET STATEMENT optimizer_trace = 'enabled=on' FOR SELECT a FROM t WHERE a = 4711"
	w := start(t, database(t, "CREATE TABLE t (a INT)", "CREATE PROCEDURE p() "+traced), twoBackends)
	for _, text := range []string{traced, "", `EXECUTE IMMEDIATE "` + traced + `"`, `PREPARE s FROM "` + traced + `"; EXECUTE s`, "CALL p()"} {
		c, others := w.dial(nil), w.dials(2)
		switch {
		case text == "":
			text = "as a prepared statement"
			c.try(c.prepare(traced).execute(0))
		default:
			for one := range strings.SplitSeq(text, "; ") {
				c.try(c.query(one))
			}
		}
		show := c.query("SELECT QUERY FROM information_schema.OPTIMIZER_TRACE")
		if r := c.try(show); !strings.Contains(r.text, "4711") {
			t.Errorf("%s: its client is shown %s", text, r.text)
		}
		_ = c.Close()
		for _, other := range others { // each of the two connections
			other.must("BEGIN")
			if r := other.try(show); strings.Contains(r.text, "4711") {
				t.Errorf("%s: another client is shown %s", text, r.text)
			}
		}
		for _, other := range others {
			_ = other.Close()
		}
	}
}

// twoBackends makes sessions meet: everything that they do not hold on to is
// done on one of two backends.
func twoBackends(c *mysql.Config) { c.PoolSize = 2 }

// A speaker is a wire that renders what it is told.
type speaker struct{ *wire }

func (w *weir) speaker(change func(*mywire.ConnectConfig)) speaker { return speaker{w.dial(change)} }

// speakerTo opens a session on addr as root.
func speakerTo(tb testing.TB, addr, db string, change func(*mywire.ConnectConfig)) speaker {
	tb.Helper()
	cfg := mywire.ConnectConfig{Address: addr, User: "root", Database: db, TLSMode: mywire.TLSDisabled, Timeout: patience}
	if change != nil {
		change(&cfg)
	}
	conn, err := mywire.Connect(ctxFor(tb), cfg)
	if err != nil {
		tb.Fatalf("dial %s: %v", addr, err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return speaker{&wire{Server: conn, tb: tb}}
}

// told renders the answer to one message: every result with its rows and the
// packet that ends it.
func (c speaker) told(command byte, message []byte) (string, mywire.Prepared) {
	c.tb.Helper()
	c.send(message)
	return c.answerTo(command)
}

func (c speaker) answerTo(command byte) (string, mywire.Prepared) {
	c.tb.Helper()
	var a mywire.Answer
	a.Reset(command, c.Caps)
	var out []string
	packets, columns := 0, 0
	for {
		seq, payload, err := c.tryPacket()
		if err != nil {
			return strings.Join(append(out, "the connection ended"), " "), mywire.Prepared{}
		}
		_, event, err := a.Feed(mywire.AppendPacket(nil, seq, payload))
		if err != nil {
			c.tb.Fatalf("answer to command %d: %v", command, err)
		}
		packets++
		if packets == 1 && event == mywire.EventMore {
			columns = int(payload[0])
		}
		if event == mywire.EventMore && a.InRows() && packets > columns+1 && !mywire.IsEOF(payload) {
			if values, err := mywire.ParseTextRow(payload, columns, nil); err == nil && command == mywire.ComQuery {
				out = append(out, fmt.Sprintf("%q", values))
			} else {
				out = append(out, fmt.Sprintf("%q", payload))
			}
		}
		if event != mywire.EventResult && event != mywire.EventDone {
			continue
		}
		if e := a.Err(); e != nil {
			out = append(out, fmt.Sprintf("ERROR %d %s", e.Code, e.Message))
		} else if command != mywire.ComStmtPrepare {
			ok := a.OK()
			// A server may set the flag of session state without saying what.
			status := uint16(ok.Status &^ mywire.StatusSessionState)
			out = append(out, fmt.Sprintf("OK affected=%d id=%d warnings=%d status=%#x info=%q state=%v", ok.AffectedRows, ok.LastInsertID, ok.Warnings, status, ok.Info, changesIn(ok.State)))
		}
		packets = 0
		if event == mywire.EventDone {
			return strings.Join(out, " "), a.Prepared()
		}
	}
}

// changesIn lists what session state tells, in an order of its own: servers tell in
// any.
func changesIn(state []byte) []string {
	var list []string
	for len(state) > 0 {
		c, rest, err := mywire.ParseChange(state)
		if err != nil {
			return append(list, err.Error())
		}
		list = append(list, fmt.Sprintf("%d:%s=%s", c.Kind, c.Name, c.Value))
		state = rest
	}
	slices.Sort(list)
	return list
}

// ask runs a text.
func (c speaker) ask(sql string) string {
	c.tb.Helper()
	got, _ := c.told(mywire.ComQuery, mywire.AppendCommand(nil, mywire.ComQuery, sql))
	return got
}

// askPrepared prepares a text without parameters, executes and closes it.
func (c speaker) askPrepared(sql string) string {
	c.tb.Helper()
	got, p := c.told(mywire.ComStmtPrepare, mywire.AppendPrepare(nil, sql))
	if strings.HasPrefix(got, "ERROR") {
		return got
	}
	got, _ = c.told(mywire.ComStmtExecute, mywire.AppendExecute(nil, 0, p.StmtID, 0, nil, nil))
	c.send(mywire.AppendStmtClose(nil, p.StmtID))
	return got
}

// value is the answer to a query for one value; an error is its number.
func (c speaker) value(query string) string {
	c.tb.Helper()
	rows, err := c.Query(ctxFor(c.tb), query)
	switch {
	case code(err) != 0:
		return fmt.Sprintf("ERROR %d", code(err))
	case err != nil:
		c.tb.Fatalf("%s: %v", query, err)
	case len(rows) == 0:
		return "none"
	case !rows[0][0].Valid:
		return "NULL"
	}
	return rows[0][0].String
}

// A churner has other clients use every free backend, and leave there whatever
// a session could take for its own.
type churner struct {
	w        *weir
	one, two *wire
}

const churnTable = "CREATE TABLE churn (id INT AUTO_INCREMENT PRIMARY KEY, x INT) AUTO_INCREMENT = 1000000"

// newChurner needs a table as of churnTable.
func newChurner(w *weir, change func(*mywire.ConnectConfig)) *churner {
	w.tb.Helper()
	ch := &churner{w: w, one: w.dial(change), two: w.dial(change)}
	ch.one.must("SET time_zone = '+11:11', sql_mode = 'NO_ENGINE_SUBSTITUTION', character_set_results = latin1")
	ch.two.must("SET lc_time_names = 'sv_SE', sort_buffer_size = 65536")
	return ch
}

// run works with a pool of two backends: the others' transactions hold both, or
// the one that is left where the second waits.
func (ch *churner) run() {
	ch.w.tb.Helper()
	ch.one.must("BEGIN")
	ch.disturb(ch.one)
	began := make(chan error, 1)
	go func() {
		_, err := ch.two.Exec(ctxFor(ch.w.tb), "BEGIN")
		began <- err
	}()
	var err error
	done := false
	eventually(ch.w.tb, "another client has the other backend or waits", func() bool {
		select {
		case err = <-began:
			done = true
		default:
		}
		return done || ch.w.pool().Waiting > 0
	})
	ch.one.must("ROLLBACK")
	if !done {
		err = <-began
	}
	if err != nil {
		ch.w.tb.Fatalf("BEGIN of another client: %v", err)
	}
	ch.disturb(ch.two)
	ch.two.must("ROLLBACK")
}

func (ch *churner) disturb(c *wire) {
	c.must("INSERT INTO churn (x) VALUES (1)")
	c.must("DO CAST('no number' AS SIGNED)")
}

// confuses reports whether a server tells of a variable under the name of another, as
// some versions of MariaDB do: what a direct client is told there is no news.
func confuses(server *lab.MySQL) bool {
	ask, _ := confusing.LoadOrStore(server, sync.OnceValue(func() bool { return confusesNow(server) }))
	return ask.(func() bool)()
}

var confusing sync.Map // by server

func confusesNow(server *lab.MySQL) bool {
	c, err := mywire.Connect(context.Background(), mywire.ConnectConfig{Address: server.Addr(), User: "root", TLSMode: mywire.TLSDisabled, Timeout: patience})
	if err != nil {
		return false // the comparison will see it, too
	}
	defer c.Close()
	ok, err := c.Exec(context.Background(), "SET foreign_key_checks = 1")
	return err == nil && bytes.Contains(ok.State, []byte("autocommit"))
}

var toldVariables = regexp.MustCompile(`0:[a-z_]+=[^ \]]* ?`)

// comparable is what a session was answered, without the name of its database, and
// where the server confuses variables without those that it tells of.
func comparable(server *lab.MySQL, text, db string) string {
	text = strings.ReplaceAll(text, db, "{db}")
	if strings.Contains(text, "state=[0:") && confuses(server) {
		text = toldVariables.ReplaceAllString(text, "")
	}
	return text
}
