package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/lab/labtest/pgtrap"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// TestSearchPathOfOthers checks that weir's own queries, which run with the rights of the user
// that connects, do not call functions or operators that others have put into the database's
// search path.
func TestSearchPathOfOthers(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE public.t (id int PRIMARY KEY, x text DEFAULT 'x')")
	caught := pgtrap.SearchPath(t, server(t).DSN(db))
	conn, err := pgconn.Connect(t.Context(), server(t).DSN(db))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	var table [][]byte
	for what, sql := range postgres.Questions("public.t") {
		results, err := conn.Exec(t.Context(), sql).ReadAll()
		if err != nil {
			t.Errorf("%s: %v\n%s", what, err, sql)
		} else if what == "table" {
			table = results[0].Rows[0]
		}
		if by := caught(); by != "" {
			t.Fatalf("%s has called %s", what, by)
		}
	}
	if string(table[4]) != "t" {
		t.Errorf("the table is not fit: %q", table)
	}
	for i, sql := range postgres.Guards() {
		args := [][]byte{[]byte("public.t"), table[0], table[1], table[2], table[3], table[6], table[7]}
		switch i {
		case 1, 3:
			args[6] = table[5]
		case 2:
			args = args[:6]
		case 4:
			args = args[:5]
		}
		if r := conn.ExecParams(t.Context(), sql, args, nil, nil, nil).Read(); r.Err != nil || string(r.Rows[0][0]) != "1" || caught() != "" {
			t.Errorf("guard %d: %v, and %q was called\n%s", i, r.Err, caught(), sql)
		}
	}
	w := start(t, db, nil)
	c, safe := w.wire(), w.wire(pgwire.Param{Name: "search_path", Value: "public"})
	c.want("/* batch */ INSERT INTO public.t VALUES (1)", "INSERT_0_1 I")
	safe.want("/* batch */ INSERT INTO t VALUES (2)", "INSERT_0_1 I")
	c.want("CREATE TEMP TABLE x ()", "CREATE_TABLE I")
	c.want("DROP TABLE x", "DROP_TABLE I")
	if by := caught(); by != "" {
		t.Errorf("weir has called %s", by)
	}
}
