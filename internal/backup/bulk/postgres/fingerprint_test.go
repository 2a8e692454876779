package postgres_test

import (
	"fmt"
	"strings"
	"testing"

	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// The options of a column are compared, and the stamp that newer servers keep among
// them is not: a restored table has another.
func TestFingerprintWithoutStamps(t *testing.T) {
	s := connect(t, labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast}))
	column := func(options string) (text string) {
		t.Helper()
		err := s.Exec(t.Context(), "UPDATE pg_attribute SET attoptions = '"+options+"' WHERE attrelid = 'public.stamped'::regclass AND attnum = 1")
		if err != nil {
			t.Fatal(err)
		}
		err = s.Fingerprint(t.Context(), "", func(a pg.Aspect) error {
			if a.Kind == "column" && a.Name == "public.stamped.a" {
				text = a.Text
			}
			return nil
		})
		if err != nil || text == "" {
			t.Fatalf("%q, %v", text, err)
		}
		return text
	}
	if err := s.Exec(t.Context(), "SET allow_system_table_mods = on; CREATE TABLE public.stamped (a int)"); err != nil {
		t.Fatal(err)
	}
	bare := column("{n_distinct=5}")
	if !strings.Contains(bare, "n_distinct=5") {
		t.Errorf("the options are not there: %s", bare)
	}
	if got := column("{pg_attver=22188144,n_distinct=5}"); got != bare {
		t.Errorf("with a stamp %q, without %q", got, bare)
	}
	if got := column("{pg_attver=1}"); strings.Contains(got, "attver") {
		t.Errorf("a stamp alone: %q", got)
	}
}

// A session that asks again has the server use the plan that it has; what is asked
// otherwise is planned for itself, and what changes in between is seen.
func TestFingerprintIsPlannedOnce(t *testing.T) {
	s := connect(t, labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast}))
	relations := func(besides string) (n int) {
		t.Helper()
		err := s.Fingerprint(t.Context(), besides, func(a pg.Aspect) error {
			if a.Kind == "relation" {
				n++
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for i, besides := range []string{"", "", "public", ""} {
		if err := s.Exec(t.Context(), fmt.Sprintf("CREATE TABLE public.t%d (a int)", i)); err != nil {
			t.Fatal(err)
		}
		want := i + 1
		if besides != "" {
			want = 0
		}
		if got := relations(besides); got != want {
			t.Errorf("%d relations, want %d", got, want)
		}
	}
	row, err := s.Row(t.Context(), "SELECT count(*), sum(generic_plans) FROM pg_catalog.pg_prepared_statements")
	if err != nil || row[0] != "1" || row[1] != "3" {
		t.Errorf("statements that are prepared, and how often they ran: %v, %v", row, err)
	}
}

// Properties that the words of a definition do not show are aspects of their own.
func TestFingerprintOfWhatIsRare(t *testing.T) {
	s := connect(t, labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast}))
	all := func() map[string]string {
		out := map[string]string{}
		err := s.Fingerprint(t.Context(), "", func(a pg.Aspect) error {
			if _, twice := out[a.Kind+" "+a.Name]; twice {
				t.Errorf("twice: %+v", a)
			}
			out[a.Kind+" "+a.Name] = a.Text
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	err := s.Exec(t.Context(), pg.NoJIT+`; SET search_path = public; CREATE ROLE other SUPERUSER; SELECT lo_create(42); CREATE PUBLICATION p; CREATE FOREIGN DATA WRAPPER w; CREATE SERVER v FOREIGN DATA WRAPPER w;
CREATE TABLE t (v text); CREATE SEQUENCE q; CREATE CONVERSION c FOR 'LATIN1' TO 'UTF8' FROM iso8859_1_to_utf8; CREATE COLLATION k FROM "C";
CREATE FUNCTION same(int, int) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT $1 = $2'; CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = same);
CREATE OPERATOR FAMILY f USING btree; CREATE TEXT SEARCH CONFIGURATION ts (COPY = simple); CREATE TEXT SEARCH DICTIONARY d (TEMPLATE = simple); SET search_path = ''`)
	if err != nil {
		t.Fatal(err)
	}
	before := all()
	for _, c := range []struct{ sql, changes string }{
		{"GRANT SELECT ON LARGE OBJECT 42 TO PUBLIC", "rights to large object 42"},
		{"ALTER PUBLICATION p OWNER TO other", "owner of publication p"},
		{"ALTER FOREIGN DATA WRAPPER w OWNER TO other", "owner of foreign data wrapper w"},
		{"GRANT USAGE ON FOREIGN DATA WRAPPER w TO PUBLIC", "rights to foreign data wrapper w"},
		{"ALTER SERVER v OWNER TO other", "owner of server v"},
		{"GRANT USAGE ON FOREIGN SERVER v TO PUBLIC", "rights to server v"},
		{"CREATE USER MAPPING FOR other SERVER v", "user mapping v other"},
		{"ALTER CONVERSION c OWNER TO other", "owner of conversion public.c"},
		{"DROP CONVERSION c", "conversion public.c"},
		{"ALTER COLLATION k OWNER TO other", "owner of collation public.k"},
		{"ALTER OPERATOR === (int, int) OWNER TO other", "owner of operator public.===(integer,integer)"},
		{"ALTER OPERATOR FAMILY f USING btree OWNER TO other", "owner of operator family operator family public.f for access method btree"},
		{"ALTER TEXT SEARCH CONFIGURATION ts OWNER TO other", "owner of text search configuration public.ts"},
		{"ALTER TEXT SEARCH DICTIONARY d OWNER TO other", "owner of text search dictionary public.d"},
		{"CREATE ACCESS METHOD m TYPE TABLE HANDLER heap_tableam_handler", "access method m"},
		{"CREATE TRANSFORM FOR text LANGUAGE plpgsql (FROM SQL WITH FUNCTION pg_catalog.varchar_support(internal))", "transform text plpgsql"},
		{"DROP COLLATION k; CREATE COLLATION k (PROVIDER = icu, LOCALE = 'de')", "locale of collation public.k"},
		{"ALTER SEQUENCE q AS smallint", "relation public.q"},
		{"ALTER SEQUENCE q OWNED BY t.v", "column of sequence public.q"},
		{"ALTER TABLE t ALTER v SET COMPRESSION pglz", "compression of column public.t.v"},
		{"ALTER TABLE t ADD w int; ALTER TABLE t DROP v; ALTER TABLE t ADD v text", "column public.t.w"},
		{"CREATE TABLE u (a int, b int) INHERITS (t); ALTER TABLE u DROP a", "column public.u.b"},
		{"ALTER TABLE u ADD a int", "column public.u.a"},
		{"ALTER TABLE u DROP b; ALTER TABLE u ADD b int", "column public.u.b"},
		{"ALTER TABLE t SET (fillfactor = 50)", "relation public.t"},
	} {
		if err := s.Exec(t.Context(), "SET search_path = public; "+c.sql+"; SET search_path = ''"); err != nil {
			t.Errorf("%s: %v", c.sql, err)
			continue
		}
		after := all()
		was, had := before[c.changes]
		is, has := after[c.changes]
		if had == has && was == is {
			t.Errorf("%s: %s stays %q", c.sql, c.changes, is)
		}
		before = after
	}
}
