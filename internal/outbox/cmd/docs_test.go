package outboxcmd

import (
	"database/sql"
	"encoding/json"
	"net/url"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	driver "github.com/go-sql-driver/mysql"

	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// docBlock matches the parts of the documentation that are run: a comment that
// says where, and a fenced block behind it.
var docBlock = regexp.MustCompile("(?s)<!-- run on (\\w+) as (\\w+) -->\n```\\w+\n(.*?)```")

// documented returns the blocks of docs/outbox.md to be run on an engine by a
// user, in their order.
func documented(t *testing.T, engine, user string) []string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/outbox.md")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, m := range docBlock.FindAllStringSubmatch(string(text), -1) {
		if m[1] == engine && m[2] == user {
			found = append(found, m[3])
		}
	}
	if len(found) == 0 {
		t.Fatalf("docs/outbox.md has nothing to run on %s as %s", engine, user)
	}
	return found
}

// The SQL of the documentation: the privileges that it names are enough for a
// relay that follows the log and for a producer in plain SQL.
func TestDocumentedSQL(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) {
		clitest.ClearEnvironment(t)
		r := sqliteRig(t)
		follow(t, r.dsn, nil, func() {
			if _, err := r.db.ExecContext(t.Context(), "CREATE TABLE orders (number INTEGER, customer TEXT)"); err != nil {
				t.Fatal(err)
			}
			for _, text := range documented(t, "sqlite", "app") {
				if _, err := r.db.ExecContext(t.Context(), text); err != nil {
					t.Errorf("%v in\n%s", err, text)
				}
			}
		})
	})
	t.Run("PostgreSQL", documentedOnPostgres)
	t.Run("MariaDB", func(t *testing.T) {
		documentedOnMySQL(t, mariadb.Get(t))
	})
	t.Run("MySQL", func(t *testing.T) {
		documentedOnMySQL(t, labtest.MySQL(t, lab.MySQLConfig{Durability: lab.Fast}))
	})
}

func documentedOnPostgres(t *testing.T) {
	pg := postgres.Get(t)
	clitest.ClearEnvironment(t)
	as := func(user string) string {
		u, err := url.Parse(pg.DSN("shop"))
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.User(user)
		return u.String()
	}
	run := func(dsn string, texts ...string) { t.Helper(); execPostgres(t, dsn, texts...) }
	run(pg.DSN("postgres"), pg.CreateDatabase("shop"))
	run(pg.DSN("shop"), documented(t, "postgres", "admin")...)
	run(pg.DSN("shop"), "CREATE TABLE orders (number int, customer text); GRANT INSERT ON orders TO app")
	follow(t, as("relay"), func() { run(as("relay"), documented(t, "postgres", "relay")...) }, func() {
		run(as("app"), documented(t, "postgres", "app")...)
	})
}

func documentedOnMySQL(t *testing.T, my *lab.MySQL) {
	clitest.ClearEnvironment(t)
	run := func(user, password, database string, texts ...string) {
		t.Helper()
		c := driver.NewConfig()
		c.User, c.Passwd, c.Net, c.Addr, c.DBName, c.MultiStatements = user, password, "tcp", my.Addr(), database, true
		connector, err := driver.NewConnector(c)
		if err != nil {
			t.Fatal(err)
		}
		db := sql.OpenDB(connector)
		defer db.Close()
		for _, text := range texts {
			if _, err := db.ExecContext(t.Context(), text); err != nil {
				t.Fatalf("%s: %v in\n%s", user, err, text)
			}
		}
	}
	root := func(texts ...string) { t.Helper(); run("root", my.Password(), "", texts...) }
	admin := documented(t, "mysql", "admin")
	root("CREATE DATABASE shop", "CREATE TABLE shop.orders (number INT, customer VARCHAR(50))")
	root(admin[:1]...)
	follow(t, "mysql://relay:change-me@"+my.Addr()+"/shop", func() { root(append(admin[1:], "GRANT INSERT ON shop.orders TO app")...) }, func() {
		run("app", "change-me-too", "shop", documented(t, "mysql", "app")...)
	})
}

// follow migrates, runs a relay, has produce write what the documentation
// writes, and sees it delivered: by the log, where the engine has one.
func follow(t *testing.T, dsn string, migrated, produce func()) {
	t.Helper()
	t.Setenv("WEIR_OUTBOX_DB", dsn)
	if out := program.Run(t, "outbox", "migrate"); strings.Contains(out, "exit") {
		t.Fatal(out)
	}
	leading := "leading"
	if migrated != nil {
		migrated()
		leading = "following the log"
	}
	p := startRelay(t, nil, "--sink", "stdout:", "--admin", "off")
	p.log.Await(leading)
	produce()
	line, err := p.stdout.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		Topic, Key string
		Headers    map[string]string
		Payload    struct{ Number int }
	}
	if err := json.Unmarshal([]byte(line), &m); err != nil || m.Topic != "orders" || m.Key != "ada" || m.Headers["type"] != "order.placed" || m.Payload.Number != 42 {
		t.Errorf("delivered %s (%v)", line, err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.end(); err != nil {
		t.Errorf("ended with %v\n%s", err, p.log.Seen.String())
	}
	var s outboxStatus
	if err := json.Unmarshal([]byte(program.Run(t, "outbox", "status", "--json")), &s); err != nil || s.Scheduled != 1 || s.Pending != 0 {
		t.Errorf("status %+v, %v", s, err)
	}
	var due struct{ Topic string }
	if err := json.Unmarshal([]byte(program.Run(t, "outbox", "inspect", "--state", "scheduled", "--json")), &due); err != nil || due.Topic != "reminders" {
		t.Errorf("scheduled %+v, %v", due, err)
	}
}
