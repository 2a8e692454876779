package postgres

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReachOfStatements(t *testing.T) {
	for _, c := range []struct {
		sql  string
		want []changeScope
	}{
		{"DROP DATABASE shop", []changeScope{{database: "shop", alone: true}}},
		{"drop database if exists \"My \"\"Shop\" with (force);", []changeScope{{database: `My "Shop`, alone: true}}},
		{"/* a /* b */ c */ DROP -- x\n DATABASE SHOP", []changeScope{{database: "shop", alone: true}}},
		{"ALTER DATABASE a RENAME TO b", []changeScope{{database: "a", alone: true}}},
		{"ALTER DATABASE a SET TABLESPACE fast", []changeScope{{database: "a", alone: true}}},
		{"ALTER DATABASE a SET search_path = x", []changeScope{{database: "a"}}},
		{"ALTER DATABASE a RESET ALL", []changeScope{{database: "a"}}},
		{"ALTER DATABASE a OWNER TO b", nil},
		{"ALTER DATABASE a CONNECTION LIMIT 5", nil},
		{"CREATE DATABASE a", []changeScope{{database: "template1", alone: true, copies: true}}},
		{"CREATE DATABASE a TEMPLATE b OWNER c", []changeScope{{database: "b", alone: true, copies: true}}},
		{"CREATE DATABASE a OWNER c TEMPLATE = 'B'", []changeScope{{database: "B", alone: true, copies: true}}},
		{"CREATE DATABASE template", []changeScope{{database: "template1", alone: true, copies: true}}},
		{"CREATE DATABASE a TEMPLATE DEFAULT", []changeScope{{database: "template1", alone: true, copies: true}}},
		{"DROP ROLE IF EXISTS a, B, \"C\"", []changeScope{{user: "a"}, {user: "b"}, {user: "C"}}},
		{"DROP USER a", []changeScope{{user: "a"}}},
		{"ALTER ROLE a SET work_mem = '1MB'", []changeScope{{user: "a"}}},
		{"ALTER ROLE a IN DATABASE d RESET work_mem", []changeScope{{user: "a", database: "d"}}},
		{"ALTER ROLE ALL SET work_mem = '1MB'", []changeScope{{}}},
		{"ALTER USER CURRENT_USER SET work_mem = '1MB'", []changeScope{{current: true}}},
		{"ALTER ROLE \"all\" SET work_mem = '1MB'", []changeScope{{user: "all"}}},
		{"ALTER ROLE a RENAME TO b", []changeScope{{user: "a"}}},
		{"ALTER ROLE a PASSWORD 'set'", nil},
		{"CREATE TABLE t (a int); DROP ROLE x; DROP DATABASE y", []changeScope{{user: "x"}, {database: "y", alone: true}}},
		{"CREATE TABLE \"database\" (a int)", nil},
		{"DROP TABLE database", nil},
		{"SELECT 'DROP DATABASE x; DROP DATABASE y'", nil},
		{"", nil},
		{"DROP DATABASE", nil},
		{"DROP DATABASE IF EXISTS", nil},
		{"DROP DATABASE \"unterminated", []changeScope{{database: "unterminated", alone: true}}},
		{"/* DROP DATABASE x", nil},
	} {
		got := reachOf(c.sql)
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(changeScope{})); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", c.sql, diff)
		}
	}
}

func FuzzReachOf(f *testing.F) {
	for _, sql := range []string{"DROP DATABASE a", "ALTER ROLE a IN DATABASE", "CREATE DATABASE a TEMPLATE =", "/*", "'", "\"\"\"", "--", "DROP ROLE if"} {
		f.Add(sql)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		n := 1
		for i := range sql {
			if sql[i] == ';' || sql[i] == ',' {
				n++
			}
		}
		if got := reachOf(sql); len(got) > n+maxReachWords {
			t.Errorf("%d statements and lists reach %d things", n, len(got))
		}
	})
}
