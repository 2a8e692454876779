//go:build linux

package proxycmd

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// docs/reference/console.md lists the columns of every table that the admin console
// shows, on both sides; -update writes it.
func TestConsolePage(t *testing.T) {
	const page = "../../../docs/reference/console.md"
	clitest.ClearEnvironment(t)
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	my := labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, Light: true})
	log, stop := program.Serve(t, "proxy", "--postgres", pg.DSN("postgres"), "--mysql", my.DSN(""),
		"--listen-postgres", "127.0.0.1:0", "--listen-mysql", "127.0.0.1:0", "--admin", "off", "--trust-loopback")
	address := make(map[string]string)
	for range 2 {
		line := log.Await("weir proxy listens")
		address[line["engine"].(string)] = line["address"].(string)
	}
	conn, err := pgx.Connect(t.Context(), "postgres://"+pg.User()+"@"+address["postgresql"]+"/weir?sslmode=disable&default_query_exec_mode=simple_protocol")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	cfg := driver.NewConfig()
	cfg.User, cfg.Net, cfg.Addr, cfg.DBName = my.User(), "tcp", address["mysql"], "weir"
	connector, err := driver.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	defer db.Close()

	onPostgres := func(command string) (columns []string, cells []string) {
		t.Helper()
		rows, err := conn.Query(t.Context(), command)
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		defer rows.Close()
		for _, f := range rows.FieldDescriptions() {
			columns = append(columns, f.Name)
		}
		for rows.Next() {
			cells = append(cells, string(rows.RawValues()[0]))
		}
		if err := rows.Err(); err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		return columns, cells
	}
	onMySQL := func(command string) []string {
		t.Helper()
		rows, err := db.QueryContext(t.Context(), command)
		if err != nil {
			t.Fatalf("%s of MySQL: %v", command, err)
		}
		defer rows.Close()
		columns, err := rows.Columns()
		if err != nil || rows.Err() != nil {
			t.Fatalf("%s of MySQL: %v, %v", command, err, rows.Err())
		}
		return columns
	}
	var b strings.Builder
	b.WriteString("# Console\n\nWritten by `go test ./internal/proxy/cmd -run TestConsolePage -update`: the tables that the [admin console](../proxy.md#admin-console) shows, and their columns.\n" +
		"Columns are the same on both sides where no other is named. Those of PgBouncer come first, in its order.\n\n| command | columns |\n| --- | --- |\n")
	_, help := onPostgres("SHOW HELP")
	var does []string
	for _, command := range help {
		if !strings.HasPrefix(command, "SHOW ") {
			does = append(does, "`"+command+"`")
			continue
		}
		columns, _ := onPostgres(command)
		note := ""
		switch command {
		case "SHOW CATALOGUES", "SHOW LISTENERS": // of PostgreSQL alone
			note = "PostgreSQL: "
		default:
			if other := onMySQL(command); !slices.Equal(columns, other) {
				note = "PostgreSQL: "
				columns = append(columns, "MySQL: "+strings.Join(other, ", "))
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s%s |\n", command, note, strings.Join(columns, ", "))
	}
	fmt.Fprintf(&b, "\nWhat does something: %s.\n", strings.Join(does, ", "))
	have, err := os.ReadFile(page)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	clitest.Golden(t, page, string(have), b.String())
	if code := stop(); code != 0 {
		t.Errorf("the proxy ended with %d", code)
	}
}
