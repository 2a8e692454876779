package mysql_test

import (
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// console logs in to the console as root.
func (w *weir) console() *wire {
	w.tb.Helper()
	return w.dial(func(c *mywire.ConnectConfig) { c.Database = "weir" })
}

func TestConsoleShowsTheProxy(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (a int PRIMARY KEY)"), nil)
	c := w.dial(nil)
	deadline := time.Now().Add(patience)
	for i := 0; w.pool().Grouped == 0 && time.Now().Before(deadline); i++ { // the first ones are alone: weir gets to know the table
		c.must(fmt.Sprintf("/* batch */ INSERT INTO t VALUES (%d)", i))
	}
	c.must("SET @a = 1")
	con := w.console()
	table := func(command string) []map[string]string {
		t.Helper()
		con.send(mywire.AppendQuery(nil, con.Caps, command))
		_, payload := con.packet()
		n, _, ok := mywire.ParseLenenc(payload)
		if !ok || mywire.IsError(payload) {
			t.Fatalf("%s: %x", command, payload)
		}
		var names []string
		for range n {
			_, payload := con.packet()
			col, err := mywire.ParseColumn(payload, con.Caps)
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, string(col.Name))
		}
		var rows []map[string]string
		for {
			_, payload := con.packet()
			if mywire.IsEnd(payload, con.Caps) {
				return rows
			}
			values, err := mywire.ParseTextRow(payload, int(n), nil)
			if err != nil {
				t.Fatal(err)
			}
			row := map[string]string{}
			for i, name := range names {
				row[name] = string(values[i])
			}
			rows = append(rows, row)
		}
	}
	first := func(command string) map[string]string {
		t.Helper()
		rows := table(command)
		if len(rows) == 0 {
			t.Fatalf("%s: nothing", command)
		}
		return rows[0]
	}
	if p := first("SHOW POOLS"); p["database"] != w.db || p["user"] != "root" || p["clients"] != "1" || p["pinned"] != "1" {
		t.Errorf("SHOW POOLS: %v", p)
	}
	if s := first("show pool_stats;"); s["grouped_writes"] != "1" || s["statements"] == "0" {
		t.Errorf("SHOW POOL_STATS: %v", s)
	}
	if s := first("SHOW STATS"); s["database"] != w.db || s["total_query_count"] == "0" || s["total_xact_count"] == "0" || s["total_received"] == "0" || s["total_sent"] == "0" {
		t.Errorf("SHOW STATS: %v", s)
	}
	if d := table("SHOW DATABASES"); len(d) != 3 || d[1]["name"] != w.db || d[1]["current_client_connections"] != "1" || d[1]["paused"] != "0" {
		t.Errorf("SHOW DATABASES: %v", d)
	}
	if b := first("SHOW BATCHES"); b["statements"] != "1" || !strings.Contains(strings.ToLower(b["statement"]), "insert into t") {
		t.Errorf("SHOW BATCHES: %v", b)
	}
	if cl := first("SHOW CLIENTS"); cl["id"] != c.id() || cl["pins"] != "user_variable" || cl["state"] != "active" || cl["activity"] != "pinned" {
		t.Errorf("SHOW CLIENTS: %v", cl)
	}
	if s := first("SHOW SERVERS"); s["database"] != w.db {
		t.Errorf("SHOW SERVERS: %v", s)
	}
	if p := first("SHOW PINS"); p["cause"] != "user_variable" || p["pins"] != "1" {
		t.Errorf("SHOW PINS: %v", p)
	}
	if len(table("SHOW STATEMENTS")) == 0 || len(table("SHOW HELP")) < 20 {
		t.Error("SHOW STATEMENTS or SHOW HELP is empty")
	}
	if v := first("SHOW VERSION"); !strings.HasPrefix(v["version"], "weir ") {
		t.Errorf("SHOW VERSION: %v", v)
	}
	if conf := table("SHOW CONFIG"); len(conf) < 10 || conf[0]["value"] != server(t).Addr() {
		t.Errorf("SHOW CONFIG: %v", conf)
	}
	// On an ordinary connection, past the console.
	rows, err := c.Query(ctxFor(t), "SHOW WEIR STATUS")
	if err != nil || len(rows) != 1 || rows[0][3].String != "user_variable" || rows[0][0].String == "" {
		t.Errorf("SHOW WEIR STATUS: %v, %v", rows, err)
	}
}

// help is what HELP lists.
func help(t *testing.T, w *weir) (commands []string) {
	t.Helper()
	a, err := w.Command(t.Context(), "HELP")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range a.Table.Rows {
		commands = append(commands, row...)
	}
	return commands
}

// Statements that clients send when they connect are answered without harm.
func TestConsoleTakesClientsAsTheyAre(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	con := w.console()
	for query, want := range map[string]string{
		"SELECT @@version_comment LIMIT 1": "weir 0.1.0: the admin console (SHOW HELP)",
		"/* mysql-connector-java-8.0 */SELECT  @@session.auto_increment_increment AS auto_increment, 1 ": "1 1",
		"select database()":                             "weir",
		"SELECT USER()":                                 "root",
		"SELECT CONNECTION_ID()":                        con.id(),
		"SELECT @@max_allowed_packet,@@some_thing":      "65536 ",
		"SHOW VARIABLES LIKE 'lower_case_table_names'":  "",
		"SHOW SESSION STATUS LIKE 'Ssl_cipher'":         "",
		"SHOW WARNINGS":                                 "",
		"show schemas":                                  "weir",
		"show tables":                                   "",
		"SET NAMES utf8mb4":                             "",
		"set autocommit=1, sql_mode=concat(@@sql_mode)": "",
		"use weir":                                      "",
		"USE `weir`":                                    "",
		"COMMIT":                                        "",
		"SELECT 'text'":                                 "1064",
		"SELECT a FROM t":                               "1064",
		"SELECT @@a FROM t":                             "1064",
		"DROP TABLE t":                                  "1064",
		"SHOW":                                          strings.Join(help(t, w), " "),
		"SHOW MASTER STATUS":                            "1064",
		"":                                              "1065",
		";;":                                            "1065",
		"/* unfinished":                                 "1064",
		"USE another":                                   "1049",
		"SELECT":                                        "1064",
	} {
		rows, err := con.Query(ctxFor(t), query)
		var cells []string
		for _, r := range rows {
			for _, v := range r {
				cells = append(cells, v.String)
			}
		}
		got := strings.Join(cells, " ")
		if err != nil {
			got = fmt.Sprint(code(err))
		}
		if got != want {
			t.Errorf("%q: %q (%v), want %q", query, got, err, want)
		}
	}
	for _, tt := range []struct {
		name   string
		packet []byte
		want   uint16
	}{
		{"COM_PING", mywire.AppendPing(nil), 0},
		{"COM_INIT_DB", mywire.AppendInitDB(nil, "weir"), 0},
		{"COM_INIT_DB of another", mywire.AppendInitDB(nil, "mysql"), mywire.ErrUnknownDatabase},
		{"COM_RESET_CONNECTION", mywire.AppendResetConnection(nil), 0},
		{"COM_STMT_PREPARE", mywire.AppendPrepare(nil, "SHOW POOLS"), 1295},
		{"COM_STATISTICS", mywire.AppendCommand(nil, mywire.ComStatistics, ""), 0},
		{"COM_FIELD_LIST", mywire.AppendCommand(nil, mywire.ComFieldList, "t\x00"), 0},
		{"COM_PROCESS_KILL", mywire.AppendProcessKill(nil, 1), mywire.ErrUnknownCommand},
	} {
		con.send(tt.packet)
		if _, payload := con.packet(); mywire.ErrorCode(payload) != tt.want {
			t.Errorf("%s: %x, want %d", tt.name, payload, tt.want)
		}
	}
	// A driver, as it is.
	var pool string
	handle := open(t, w.Addr().String(), "weir", func(c *driver.Config) { c.InterpolateParams = true })
	if err := handle.QueryRowContext(ctxFor(t), "SHOW VERSION").Scan(&pool); err != nil || !strings.HasPrefix(pool, "weir") {
		t.Errorf("go-sql-driver: %q, %v", pool, err)
	}
	if err := handle.PingContext(ctxFor(t)); err != nil {
		t.Errorf("ping: %v", err)
	}
}

func TestConsoleByCommandLineClient(t *testing.T) {
	t.Parallel()
	program := server(t).Client()
	if program == "" {
		t.Skip("the server's command line client is not installed")
	}
	w := start(t, database(t), nil)
	host, port, err := net.SplitHostPort(w.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctxFor(t), program, append([]string{
		"--no-defaults", "--user=root", "--protocol=tcp",
		"--host=" + host, "--port=" + port, "--table", "--loose-commands", "weir", // MySQL 9's knows status only by that
	}, withoutTLS(t)...)...)
	cmd.Stdin = strings.NewReader("SHOW VERSION;\nstatus\nSHOW CONFIG\\G\n")
	out, err := cmd.CombinedOutput()
	for _, want := range []string{"| weir 0.1.0 |", "Current user:\t\troot", "key: read_lanes"} {
		if err != nil || !strings.Contains(string(out), want) {
			t.Fatalf("%v; want %q in\n%s", err, want, out)
		}
	}
}

func TestConsoleIsForAdministrators(t *testing.T) {
	t.Parallel()
	secret, err := mywire.ParseSecret(bobPassword)
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, "", func(c *mysql.Config) {
		c.Users = []mysql.User{{Name: bob, Secret: secret}, {Name: eve, Secret: secret}}
		c.AdminUsers = []string{bob}
	})
	for _, tt := range []struct {
		user, password string
		want           uint16
	}{
		{"root", "", 0}, // weir holds no secret, and lends what the server grants it
		{bob, bobPassword, 0},
		{bob, "wrong", mywire.ErrAccessDenied},
		{bob, "", mywire.ErrAccessDenied},
		{eve, bobPassword, mywire.ErrAccessDenied},
		{"", "", mywire.ErrAccessDenied},
	} {
		_, err := w.tryDial(func(c *mywire.ConnectConfig) { c.User, c.Password, c.Database = tt.user, tt.password, "weir" })
		if code(err) != tt.want {
			t.Errorf("%q with %q: %v, want %d", tt.user, tt.password, err, tt.want)
		}
	}
	if n := w.snapshot().Clients; n != 0 {
		t.Errorf("%d clients: the console's are none", n)
	}
	// By a change of the user there and not back.
	c := w.dial(nil)
	if err := c.changeUser(bob, bobPassword, "weir"); err != nil {
		t.Fatal(err)
	}
	if rows, err := c.Query(ctxFor(t), "SHOW VERSION"); err != nil || len(rows) != 1 {
		t.Errorf("console after a change of the user: %v, %v", rows, err)
	}
	c.send(mywire.AppendChangeUser(nil, c.Caps, &mywire.ChangeUser{User: "root"}))
	if _, payload := c.packet(); mywire.ErrorCode(payload) != mywire.ErrUnknownCommand {
		t.Errorf("and back: %x", payload)
	}
	// It does not keep the proxy from ending.
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	if _, _, err := c.tryPacket(); err == nil {
		t.Error("the console outlives the proxy")
	}
}

// The console is a listener like any other: it must survive what is sent to it.
func FuzzConsole(f *testing.F) {
	f.Add([]byte("\x03SHOW POOLS"))
	f.Add([]byte("\x03SELECT @@a AS b, 1 LIMIT 1"))
	f.Add([]byte("\x03SELECT @@a\x93 AS b, 1 LIMIT 1"))
	f.Add([]byte("\x02weir"))
	f.Add([]byte("\x16SELECT 1"))
	f.Add([]byte("\x03/* USE `"))
	w := start(f, "", nil)
	f.Fuzz(func(t *testing.T, payload []byte) {
		if len(payload) == 0 || len(payload) > 1<<16 {
			return
		}
		con := w.within(t).console()
		con.send(mywire.AppendPacket(nil, 0, payload))
		con.send(mywire.AppendQuit(nil))
		for {
			if _, _, err := con.tryPacket(); err != nil {
				return // the end, after the answer
			}
		}
	})
}
