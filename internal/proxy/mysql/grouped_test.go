package mysql_test

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"strings"
	gosync "sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// The kinds of lanes, as snapshots name them.
const (
	rowsLane = "rows"
	txLane   = "transaction"
)

// writeLanes are the two ways of grouping writes, each with the other switched
// off.
var writeLanes = []struct {
	kind   string
	change func(*mysql.Config)
}{
	{rowsLane, func(c *mysql.Config) { c.NoSoloLane = true }},
	{txLane, func(c *mysql.Config) { c.NoRowsLane = true }},
}

// oneGroupAtATime makes groups certain: while one is under way, all others wait.
func oneGroupAtATime(change func(*mysql.Config)) func(*mysql.Config) {
	return func(c *mysql.Config) {
		c.WriteLanes = 1
		if change != nil {
			change(c)
		}
	}
}

// A reply is one answer as its client sees it.
type reply struct {
	text string // everything in it, to be compared
	ok   mywire.OK
	err  *mywire.Error
	lost error // the connection ended, or spoke nonsense
}

// code is the number of the error, 0 for none.
func (r reply) code() uint16 {
	if r.err == nil {
		return 0
	}
	return r.err.Code
}

// hear reads the answer to a command. It may be called on any goroutine.
func (c *wire) hear(command byte) (r reply, prepared mywire.Prepared) {
	var a mywire.Answer
	a.Reset(command, c.Caps)
	var out []string
	for {
		seq, payload, err := c.tryPacket()
		if err != nil {
			r.lost = err
			return r, prepared
		}
		_, event, err := a.Feed(mywire.AppendPacket(nil, seq, payload))
		if err != nil {
			r.lost = fmt.Errorf("packet %d %x: %w", seq, payload, err)
			return r, prepared
		}
		switch {
		case event == mywire.EventMore:
			out = append(out, fmt.Sprintf("%d:%q", seq, payload))
			continue
		case a.Err() != nil:
			e := *a.Err()
			r.err = &e
			out = append(out, fmt.Sprintf("%d:ERROR %d (%s) %s", seq, e.Code, e.State, e.Message))
		case command == mywire.ComStmtPrepare:
			prepared = a.Prepared()
		default:
			r.ok = a.OK()
			out = append(out, fmt.Sprintf("%d:OK affected=%d id=%d warnings=%d status=%#x info=%q", seq,
				r.ok.AffectedRows, r.ok.LastInsertID, r.ok.Warnings, uint16(r.ok.Status), r.ok.Info))
		}
		if event == mywire.EventDone {
			r.text = strings.Join(out, " ")
			return r, prepared
		}
	}
}

// try sends one message and reads its answer. It may be called on any goroutine.
func (c *wire) try(message []byte) reply {
	if _, err := c.Conn.Write(message); err != nil {
		return reply{lost: err}
	}
	r, _ := c.hear(message[mywire.HeaderLen])
	return r
}

func (c *wire) query(sql string) []byte { return mywire.AppendQuery(nil, c.Caps, sql) }

// A prepared statement of one wire, whose parameters are all BIGINT.
type prepared struct {
	c  *wire
	id uint32
	n  int
}

func (c *wire) prepare(sql string) prepared {
	c.tb.Helper()
	c.send(mywire.AppendPrepare(nil, sql))
	r, p := c.hear(mywire.ComStmtPrepare)
	if r.err != nil || r.lost != nil {
		c.tb.Fatalf("prepare %s: %v %v", sql, r.err, r.lost)
	}
	return prepared{c, p.StmtID, int(p.Params)}
}

// execute is the message with all parameters set to k.
func (p prepared) execute(k int64) []byte {
	var types, values []byte
	for range p.n {
		types = append(types, 8, 0)
		values = binary.LittleEndian.AppendUint64(values, uint64(k))
	}
	return mywire.AppendExecute(nil, p.c.Caps, p.id, 0, make([]byte, mywire.NullsLen(p.n)), types, values)
}

// executeNull is the message with the first parameter set to k, and the second
// to NULL.
func (p prepared) executeNull(k int64) []byte {
	value := binary.LittleEndian.AppendUint64(nil, uint64(k))
	return mywire.AppendExecute(nil, p.c.Caps, p.id, 0, []byte{2}, []byte{8, 0, 8, 0}, value)
}

// together has every client send its message and returns the answers. A proxy reads them
// in one turn of its loop, and so its lanes gather what may be grouped.
func together(clients []*wire, messages [][]byte) []reply {
	release := func() {}
	if s, ok := proxies.Load(clients[0].Conn.RemoteAddr().String()); ok {
		release = s.(*mysql.Server).Hold()
	}
	answers := make([]reply, len(clients))
	for i, c := range clients {
		_, answers[i].lost = c.Conn.Write(messages[i])
	}
	release()
	var done gosync.WaitGroup
	for i, c := range clients {
		if answers[i].lost == nil {
			done.Go(func() { answers[i], _ = c.hear(messages[i][mywire.HeaderLen]) })
		}
	}
	done.Wait()
	return answers
}

// dials opens n clients.
func (w *weir) dials(n int) []*wire {
	w.tb.Helper()
	all := make([]*wire, n)
	for i := range all {
		all[i] = w.dial(nil)
	}
	return all
}

// extras counts the members beyond the first of each group that the lanes of a
// kind ran: more than none means that there were groups of two and more.
func (w *weir) extras(kind string) (n uint64) {
	w.tb.Helper()
	for _, l := range w.snapshot().Lanes {
		if l.Kind == kind {
			n += l.Members - min(l.Members, l.Groups)
		}
	}
	return n
}

// members counts the writes that the lanes of a kind ran.
func (w *weir) members(kind string) (n uint64) {
	w.tb.Helper()
	for _, l := range w.snapshot().Lanes {
		if l.Kind == kind {
			n += l.Members
		}
	}
	return n
}

// mustGather repeats try until a group of at least two has run in a lane of the
// given kind: the proxy first has to learn of the tables.
func (w *weir) mustGather(kind string, try func(round int)) {
	w.tb.Helper()
	before := w.extras(kind)
	deadline := time.Now().Add(gatherPatience)
	for round := 0; round < 20 || time.Now().Before(deadline); round++ { // on a busy machine weir gets to know the table late
		try(round)
		if w.tb.Failed() || w.extras(kind) > before {
			return
		}
	}
	snap := w.snapshot()
	var state strings.Builder
	for _, l := range snap.Lanes {
		fmt.Fprintf(&state, "\nlane %s %q: groups %d, members %d, fallbacks %d, retried %d, limit %d, waiting %d, in flight %d, reasons %v",
			l.Kind, l.Text, l.Groups, l.Members, l.Fallbacks, l.Retried, l.Limit, l.Waiting, l.InFlight, l.Batch.Reasons)
	}
	for _, s := range snap.Shapes {
		fmt.Fprintf(&state, "\nstatement %q: runs %d, grouped %d, pinned %d, errors %d", s.Text, s.Runs, s.Grouped, s.Pinned, s.Errors)
	}
	for _, p := range snap.Pools {
		fmt.Fprintf(&state, "\npool %+v", p)
	}
	w.tb.Fatalf("within %s no burst made a group in a lane of kind %s:%s", gatherPatience, kind, &state)
}

// gatherPatience is well below the time after which clients give up.
const gatherPatience = time.Minute

// without is the reply with another name for the database, in plain text and in
// descriptions of columns, where its length stands in front.
func (r reply) without(db string) reply {
	r.text = strings.NewReplacer(fmt.Sprintf(`\x%02x%s`, len(db), db), "[db]", db, "[db]").Replace(r.text)
	return r
}

// mustBe ends the test if an answer is not the expected one.
func (r reply) mustBe(tb testing.TB, what, want string) {
	tb.Helper()
	if r.lost != nil || r.text != want {
		tb.Errorf("%s: %s %v, want %s", what, r.text, r.lost, want)
	}
}

// oneRow is the answer to an INSERT of one row without an id.
const oneRow = `1:OK affected=1 id=0 warnings=0 status=0x2 info=""`

func TestOneBadMemberFailsAloneAndOthersStay(t *testing.T) {
	t.Parallel()
	perFlavor(t, func(t *testing.T, server *lab.MySQL) {
		for _, lane := range writeLanes {
			t.Run(lane.kind, func(t *testing.T) {
				t.Parallel()
				oneBadMember(t, server, lane.kind, oneGroupAtATime(lane.change))
			})
		}
	})
}

// oneBadMember has one of 16 writes violate the key, one a CHECK, one the type.
func oneBadMember(t *testing.T, server *lab.MySQL, kind string, change func(*mysql.Config)) {
	db := databaseOn(t, server, "CREATE TABLE bt (k BIGINT PRIMARY KEY, v BIGINT NOT NULL, CHECK (v <> 13), s TINYINT)", "INSERT INTO bt VALUES (0, 0, 0)")
	w := startFor(t, server, db, change)
	const n = 16
	all := w.dials(n)
	statements := make([]prepared, n)
	for i, c := range all {
		statements[i] = c.prepare("/* batch */ INSERT INTO bt VALUES (?, ?, 1)")
	}
	checkFails := uint16(4025)
	if !isMariaDB(server) {
		checkFails = 3819
	}
	next, kept := int64(1000), 0
	for _, text := range []bool{true, false} {
		w.mustGather(kind, func(int) {
			messages := make([][]byte, n)
			want := make([]uint16, n)
			for i, c := range all {
				next++
				k, v, s := next, next, int64(1)
				switch i {
				case 3:
					k, want[i] = 0, 1062
				case 7:
					v, want[i] = 13, checkFails
				case 11:
					s, want[i] = 1000, 1264
				default:
					kept++
				}
				if text {
					messages[i] = c.query(fmt.Sprintf("/* batch */ INSERT INTO bt VALUES (%d, %d, %d)", k, v, s))
					continue
				}
				switch i {
				case 7:
					k, want[i] = 13, checkFails
				case 11:
					want[i] = 0
					kept++
				}
				messages[i] = statements[i].execute(k)
			}
			for i, r := range together(all, messages) {
				if r.lost != nil || r.code() != want[i] {
					t.Errorf("member %d: %s %v, want error %d", i, r.text, r.lost, want[i])
				}
				if want[i] == 0 && r.text != oneRow {
					t.Errorf("member %d: %s, want %s", i, r.text, oneRow)
				}
			}
		})
	}
	if got, want := all[0].one("SELECT COUNT(*) FROM bt WHERE k >= 1000"), fmt.Sprint(kept); got != want {
		t.Errorf("%s rows, want %s", got, want)
	}
}

func TestErrorsOfMembersAreThoseOfADirectConnection(t *testing.T) {
	t.Parallel()
	bad := []string{
		"INSERT INTO bt VALUES (1, 'dup', 1, 0)", "INSERT INTO bt VALUES (2, 'bad', 1, 0)", "INSERT INTO bt VALUES ('x', 'y', 1, 0)",
		"INSERT INTO bt VALUES (1, 2, 3)", "INSERT INTO bt VALUES (99999999999, 'y', 1, 0)", "INSERT INTO bt VALUES (3, NULL, 1, 0)",
		"INSERT INTO bt VALUES (4, 'much too long', 1, 0)", "INSERT INTO bt VALUES (5, nope, 1, 0)", "INSERT INTO bt VALUES (6, 'y', 1000, 0)",
		"INSERT INTO bt VALUES (7, 'y', 1, 1/0)", "INSERT INTO bt VALUES (8, 'y', 1, '2021-02-30')", "INSERT INTO bt (k) VALUES (9)",
	}
	perFlavor(t, func(t *testing.T, server *lab.MySQL) {
		for _, lane := range writeLanes {
			t.Run(lane.kind, func(t *testing.T) {
				t.Parallel()
				setup := []string{"CREATE TABLE bt (k INT PRIMARY KEY, v VARCHAR(5) NOT NULL, CHECK (v <> 'bad'), s TINYINT, n INT)", "INSERT INTO bt VALUES (1, 'x', 0, 0)"}
				w := startFor(t, server, databaseOn(t, server, setup...), oneGroupAtATime(lane.change))
				direct := databaseOn(t, server, setup...)
				one := dialAt(t, server.Addr(), direct, nil)
				all := w.dials(len(bad))
				w.mustGather(lane.kind, func(int) {
					messages := make([][]byte, len(all))
					for i, c := range all {
						messages[i] = c.query("/* batch */ " + bad[i])
					}
					for i, r := range together(all, messages) {
						want := one.try(one.query(bad[i]))
						if want.err == nil {
							t.Fatalf("%s does not fail: %s", bad[i], want.text)
						}
						r.without(w.db).mustBe(t, bad[i], want.without(direct).text)
					}
				})
				if got := all[0].one("SELECT COUNT(*) FROM bt"); got != "1" {
					t.Errorf("%s rows, though every member failed", got)
				}
			})
		}
	})
}

// TestGroupedWritesEqualDirectOnes has, for every kind of table and statement
// that could make a group differ from its members apart, the same writes made by
// many clients at once through the proxy, and one after the other directly: by an
// ordinary account, but for what takes more.
func TestGroupedWritesEqualDirectOnes(t *testing.T) {
	t.Parallel()
	perFlavor(t, func(t *testing.T, server *lab.MySQL) {
		for _, c := range groupedCases {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				if maria := isMariaDB(server); c.mariadb && !maria || c.mysql && maria {
					t.Skip("the server does not know this")
				}
				c.run(t, server)
			})
		}
	})
}

// TestWarningsOfGroupsWhereTheServerListsFew has groups whose rows give more warnings than
// the server lists, which ordinary accounts of MySQL cannot change.
func TestWarningsOfGroupsWhereTheServerListsFew(t *testing.T) {
	t.Parallel()
	cfg := serverConfig()
	cfg.Settings = map[string]string{"max_error_count": "3"}
	for name, start := range map[string]func(testing.TB, lab.MySQLConfig) *lab.MySQL{"mariadb": labtest.MariaDB, "mysql": labtest.MySQL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gc := groupedCase{
				lane: rowsLane, setup: []string{"CREATE TABLE g (k INT, n DECIMAL(6,1), m DECIMAL(6,1))"},
				sql: "INSERT INTO g VALUES (%d, %s)", value: every(2, "1.55, 1.55", "1.5, 1.5"), check: "SELECT SUM(n = 1.6) > 0 FROM g",
			}
			gc.run(t, start(t, cfg))
		})
	}
}

// TestWarningsOfGroupsWhenTheServerListsFewer has a lane go on where the server is told to
// list fewer warnings than before.
func TestWarningsOfGroupsWhenTheServerListsFewer(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB, lab.MySQLConfig) *lab.MySQL{"mariadb": labtest.MariaDB, "mysql": labtest.MySQL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := start(t, serverConfig())
			w := startFor(t, srv, databaseOn(t, srv, "CREATE TABLE g (k INT, n DECIMAL(6,1), m DECIMAL(6,1))"), oneGroupAtATime(nil))
			all := w.dials(10)
			insert := func(c *wire, k int, values string) []byte {
				return c.query(fmt.Sprintf("/* batch */ INSERT INTO g VALUES (%d, %s)", k, values))
			}
			const exact, rounded = "1.5, 1.5", "1.55, 1.55" // with two warnings
			burst := func(round int) {
				t.Helper()
				messages := make([][]byte, len(all))
				for i, c := range all {
					messages[i] = insert(c, round, []string{exact, rounded}[i%2])
				}
				for i, r := range together(all, messages) {
					if r.err != nil || r.lost != nil || int(r.ok.Warnings) != i%2*2 {
						t.Errorf("round %d, client %d: %s %v", round, i, r.text, r.lost)
					}
				}
			}
			c := all[0]
			eventually(t, "a write has gone through the lane alone", func() bool {
				c.try(insert(c, 0, exact)).mustBe(t, "alone", oneRow)
				return t.Failed() || w.members(rowsLane) > 0
			})
			if r := c.try(insert(c, 0, rounded)); r.lost != nil || r.ok.Warnings != 2 {
				t.Errorf("alone, with warnings: %s %v", r.text, r.lost)
			}
			w.mustGather(rowsLane, burst)
			w.mustGather(rowsLane, burst) // after a group with warnings, too
			sqlOn(t, srv, "SET GLOBAL max_error_count = 3")
			opened := w.pool().Opened
			eventually(t, "the change is noticed", func() bool {
				c := w.dial(nil)
				defer func() { _ = c.Close() }()
				return c.one("SELECT @@max_error_count") == "3" && w.pool().Opened > opened
			})
			for round := range 10 {
				burst(1000 + round)
			}
		})
	}
}

// TestSettingsGivenBackAreThoseOfTheLogin has the server's defaults change while a client
// has settings of its own. The connection then goes back to what its login had found: by
// these numbers weir tells the ids and the warnings of a group's rows apart.
func TestSettingsGivenBackAreThoseOfTheLogin(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB, lab.MySQLConfig) *lab.MySQL{"mariadb": labtest.MariaDB, "mysql": labtest.MySQL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := start(t, serverConfig())
			w := startFor(t, srv, databaseOn(t, srv), func(c *mysql.Config) { c.PoolSize = 1 })
			setter, other := w.dial(nil), w.dial(nil)
			const ask = "SELECT CONCAT(@@max_error_count, ' ', @@auto_increment_increment)"
			before := other.one(ask)
			setter.must("SET max_error_count = 5, auto_increment_increment = 7")
			if got := setter.one(ask); got != "5 7" {
				t.Fatalf("settings of its own: %s", got)
			}
			sqlOn(t, srv, "SET GLOBAL max_error_count = 3", "SET GLOBAL auto_increment_increment = 10")
			if got := other.one(ask); got != before || w.pool().Opened != 1 {
				t.Errorf("given back: %s on the connection that had begun with %s; %d opened", got, before, w.pool().Opened)
			}
		})
	}
}

type groupedCase struct {
	name    string
	setup   []string
	session string      // run by every client first
	caps    mywire.Caps // added to the usual ones
	without mywire.Caps // taken from them
	sql     string      // %d is the member's number
	lane    string      // in which groups must come about. Default: transaction
	never   bool        // instead, nothing may be grouped
	own     bool        // the id that each was told is that of its own row in g
	check   string
	mariadb bool                 // MySQL does not know it
	mysql   bool                 // MariaDB does not
	text    bool                 // not prepared as well
	nulls   bool                 // prepared, the second parameter is NULL in some from noisy on
	value   func(k int64) string // %[2]s in sql; a number or a string
	hint    string               // before the statement. Default: /* batch */
	root    bool                 // by root: an ordinary account may not do that, or is not shown what it runs
}

func (gc *groupedCase) run(t *testing.T, server *lab.MySQL) {
	setup := append([]string{"CREATE TABLE log (what VARCHAR(100))"}, gc.setup...)
	grouped, direct := databaseOn(t, server, setup...), databaseOn(t, server, setup...)
	w := startFor(t, server, grouped, oneGroupAtATime(func(c *mysql.Config) { c.PoolSize = 16 })) // a backend for each
	user, password := "root", ""
	if !gc.root {
		user, password = accountOn(t, server, grouped, direct)
	}
	with := func(cfg *mywire.ConnectConfig) {
		cfg.User, cfg.Password, cfg.Caps = user, password, (mywire.WantedCaps|gc.caps)&^gc.without
	}
	one := dialAt(t, server.Addr(), direct, with)
	all := make([]*wire, 6)
	for i := range all {
		all[i] = w.dial(with)
	}
	if gc.session != "" {
		one.must(gc.session)
		for _, c := range all {
			c.must(gc.session)
		}
	}
	hint := cmp.Or(gc.hint, "/* batch */ ")
	k := int64(0)
	burst := func(messageOf func(i int, c *wire, k int64) []byte) {
		var messages, same [][]byte
		first := k
		for i, c := range all {
			messages = append(messages, messageOf(i, c, k))
			same = append(same, messageOf(-1, one, k))
			k++
		}
		got := together(all, messages)
		for i := range got {
			// Apart, they can get in each other's way as direct ones can, and their
			// clients try again.
			for tries := 1; gc.never && got[i].code() == mywire.ErrDeadlock && tries < 10; tries++ {
				got[i] = all[i].try(messages[i])
			}
		}
		for i, m := range same {
			want := one.try(m)
			if gc.own && want.err == nil {
				gc.checkID(t, one, direct, first+int64(i), &want)
				gc.checkID(t, one, grouped, first+int64(i), &got[i])
			}
			got[i].without(grouped).mustBe(t, fmt.Sprintf("member %d", first+int64(i)), want.without(direct).text)
		}
	}
	texts := func(int) {
		burst(func(_ int, c *wire, k int64) []byte {
			if gc.value != nil {
				return c.query(hint + fmt.Sprintf(gc.sql, k, gc.value(k)))
			}
			return c.query(hint + fmt.Sprintf(gc.sql, k))
		})
	}
	gc.repeat(w, user, all, texts)
	k = noisy
	for i := range 3 {
		texts(i)
	}
	k = noisy / 2
	if !gc.text && gc.value == nil {
		sql := hint + strings.NewReplacer("%d", "?", "%[1]d", "?", "%%", "%").Replace(gc.sql)
		mine := one.prepare(sql)
		statements := make([]prepared, len(all))
		for i, c := range all {
			statements[i] = c.prepare(sql)
		}
		executions := func(int) {
			burst(func(i int, _ *wire, k int64) []byte {
				p := mine
				if i >= 0 {
					p = statements[i]
				}
				if gc.nulls && k >= noisy && k%3 == 0 {
					return p.executeNull(k)
				}
				return p.execute(k)
			})
		}
		gc.repeat(w, user, all, executions)
		k = 3 * noisy / 2
		for i := range 3 {
			executions(i)
		}
	}
	if gc.never {
		if n := w.extras(rowsLane) + w.extras(txLane); n > 0 {
			t.Errorf("%d writes were grouped with others", n)
		}
	}
	root := dialAt(t, server.Addr(), "", nil)
	var results [2]string
	for i, db := range []string{direct, grouped} {
		root.must("USE " + db)
		r := root.try(root.query(gc.check))
		if r.err != nil {
			t.Fatalf("%s: %v", gc.check, r.err)
		}
		results[i] = r.without(db).text
	}
	if results[0] != results[1] {
		t.Errorf("afterwards %s\ndirect %s\n  weir %s", gc.check, results[0], results[1])
	}
}

// noisy is the number of a member from which on some cases give warnings: until
// then, groups have come about.
const noisy = 1000

// repeat has bursts made until a group came about, or often enough to see that
// none does.
func (gc *groupedCase) repeat(w *weir, user string, all []*wire, burst func(int)) {
	w.tb.Helper()
	switch {
	case gc.never:
		burst(0)
		if gc.session == "" {
			eventually(w.tb, "weir has asked about the table", func() bool {
				for _, c := range all {
					c.must("DO (SELECT 0 FROM (SELECT 0) AS t)") // after an error it keeps its connection until then
				}
				return w.poolOf(user).Owned == 0
			})
		}
		for i := range 6 {
			burst(i)
		}
	case gc.lane == "":
		w.mustGather(txLane, burst)
	default:
		w.mustGather(gc.lane, burst)
	}
}

// every is a value for one member of n, and another one for the rest; from noisy on.
func every(n int64, one, rest string) func(int64) string {
	return func(k int64) string {
		if k >= noisy && k%n == 0 {
			return one
		}
		return rest
	}
}

// checkID sees whether the id that a member was told is that of its row, and
// takes it out of the answer: it depends on the order of arrival.
func (gc *groupedCase) checkID(t *testing.T, root *wire, db string, k int64, r *reply) {
	t.Helper()
	rows, err := root.Query(ctxFor(t), fmt.Sprintf("SELECT id FROM %s.g WHERE k = %d", db, k))
	if err != nil {
		t.Fatal(err)
	}
	told := fmt.Sprint(r.ok.LastInsertID)
	if len(rows) != 1 || rows[0][0].String != told {
		t.Errorf("member %d was told id %s: %s; its rows have %v", k, told, r.text, rows)
	}
	r.text = strings.Replace(r.text, "id="+told, "id=own", 1)
}

// perFlavor runs f with the shared MariaDB and, where it is installed, with a
// MySQL.
func perFlavor(t *testing.T, f func(t *testing.T, server *lab.MySQL)) {
	t.Run("mariadb", func(t *testing.T) {
		t.Parallel()
		f(t, server(t))
	})
	t.Run("mysql", func(t *testing.T) {
		t.Parallel()
		f(t, labtest.MySQL(t, serverConfig()))
	})
}

// dialAt opens a session on a server or proxy as root.
func dialAt(tb testing.TB, addr, db string, change func(*mywire.ConnectConfig)) *wire {
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
	return &wire{Server: conn, tb: tb}
}
