package process_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// dialMySQL runs one query through the MySQL side as a user and returns its
// single value.
func dialMySQL(t *testing.T, address, user, password, database, query string) (string, error) {
	t.Helper()
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.Net, cfg.Addr, cfg.DBName = user, password, "tcp", address, database
	cfg.Logger = &mysql.NopLogger{} // every error is returned as well
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	defer db.Close()
	var value string
	err = db.QueryRowContext(t.Context(), query).Scan(&value)
	return value, err
}

func TestProxyServesBothSides(t *testing.T) {
	pg := sharedPostgres.Get(t)
	my := labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, Light: true, BufferPool: "16M"})
	if err := my.CreateUser(t.Context(), lab.MySQLUser{Name: "app", Password: "first"}); err != nil {
		t.Fatal(err)
	}
	users := filepath.Join(t.TempDir(), "mysql-users.txt")
	clitest.Write(t, users, `"app" "first"`)
	log, stop := startProxy(t, "--postgres", pg.DSN("postgres"), "--mysql", my.DSN(""), "--mysql-auth-file", users)
	listens := map[string]map[string]any{}
	for range 2 {
		e := log.Await("weir proxy listens")
		listens[e["engine"].(string)] = e
	}
	if listens["postgresql"]["server"] != pg.Addr() || listens["mysql"]["server"] != my.Addr() {
		t.Fatalf("listens: %v", listens)
	}
	pgAddress, myAddress := listens["postgresql"]["address"].(string), listens["mysql"]["address"].(string)
	admin := listens["mysql"]["admin"].(string)

	conn, err := dial(t, pgAddress, pg.User(), "", "postgres")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	if got, err := dialMySQL(t, myAddress, "app", "first", "", "SELECT CONCAT('my', 'sql')"); err != nil || got != "mysql" {
		t.Fatalf("%q, %v", got, err)
	}
	if got, err := dialMySQL(t, myAddress, my.User(), "", "weir", "SHOW VERSION"); err != nil || !strings.HasPrefix(got, "weir ") {
		t.Errorf("console: %q, %v", got, err)
	}

	t.Run("one admin server for both", func(t *testing.T) {
		if code, body := clitest.Get(t, admin+"readyz"); code != 200 {
			t.Errorf("readyz: %d %s", code, body)
		}
		type row struct{ Engine string }
		var state struct {
			Server            string
			Sides             []struct{ Engine, Server, Listen string }
			Pools, Statements []row
		}
		_, body := clitest.Get(t, admin+"snapshot.json")
		if err := json.Unmarshal([]byte(body), &state); err != nil {
			t.Fatal(err)
		}
		if state.Server != pg.Addr()+", "+my.Addr() || len(state.Sides) != 2 || state.Sides[1].Listen != myAddress {
			t.Errorf("sides: %s", body)
		}
		want := []row{{"postgresql"}, {"mysql"}}
		if diff := cmp.Diff(want, state.Pools); diff != "" {
			t.Errorf("pools (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want, state.Statements); diff != "" {
			t.Errorf("statements (-want +got):\n%s", diff)
		}
		_, metrics := clitest.Get(t, admin+"metrics")
		for _, engine := range []string{"postgresql", "mysql"} {
			if line := fmt.Sprintf(`weir_proxy_logins_total{engine="%s",outcome="accepted"}`, engine); !strings.Contains(metrics, line) {
				t.Errorf("no %s in the metrics", line)
			}
		}
	})
	t.Run("reload", func(t *testing.T) {
		clitest.Write(t, users, `"app" "`+mywire.NewNativeSecret("second")+`"`)
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		if e := log.Await("configuration reloaded"); e["users"] != 1.0 {
			t.Errorf("reload: %v", e)
		}
		if _, err := dialMySQL(t, myAddress, "app", "first", "", "SELECT 1"); err == nil {
			t.Error("the old password is still good")
		}
	})
	t.Run("one server is gone", func(t *testing.T) {
		my.Kill()
		<-my.Done()
		for {
			code, body := clitest.Get(t, admin+"readyz")
			if code == 200 {
				continue // the loss is not seen yet
			}
			if code != 503 || !strings.Contains(body, "MySQL: ") || !strings.Contains(body, "connection refused") || strings.Contains(body, "PostgreSQL: ") {
				t.Errorf("readyz: %d %s", code, body)
			}
			break
		}
		if _, err := conn.Exec(t.Context(), "SELECT 1"); err != nil {
			t.Errorf("the other side: %v", err)
		}
	})
	if code := stop(); code != cli.ExitFine {
		t.Errorf("exit code %d, want 0; log:\n%s", code, log.Seen.String())
	}
	for _, secret := range []string{"first", "second", mywire.NewNativeSecret("second")} {
		if strings.Contains(log.Seen.String(), secret) {
			t.Errorf("the log holds a secret:\n%s", log.Seen.String())
		}
	}
}

// Without PostgreSQL nothing is said or opened for it.
func TestProxyForMySQLAlone(t *testing.T) {
	my := labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, Light: true, BufferPool: "16M", Password: "secret"})
	log, stop := startProxy(t, "--mysql", my.DSN(""))
	if e := log.Await("the password in --mysql"); e["level"] != "WARN" {
		t.Errorf("a password on the command line: %v", e)
	}
	e := log.Await("weir proxy listens")
	if e["engine"] != "mysql" {
		t.Errorf("listens: %v", e)
	}
	if got, err := dialMySQL(t, e["address"].(string), my.User(), "secret", "", "SELECT 1"); err != nil || got != "1" {
		t.Errorf("%q, %v", got, err)
	}
	if code := stop(); code != cli.ExitFine || strings.Contains(log.Seen.String(), "PostgreSQL") {
		t.Errorf("exit code %d; log:\n%s", code, log.Seen.String())
	}
}
