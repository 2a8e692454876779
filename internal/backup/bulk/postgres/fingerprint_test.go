package postgres_test

import (
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
