package sqlscan

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzRoutine: what is read of the code of functions, of a DO, and of a statement for a
// series is the same each time, and stands in the text.
func FuzzRoutine(f *testing.F) {
	seed(f)
	for _, sql := range []string{
		"DO $$ BEGIN PERFORM set_config('a.b', 'c', false); END $$", "do language plpgsql 'begin null; end';", "DO $a$ $a$ LANGUAGE sql", "do 'a''b'", "do $", "do $$", "do '",
		"DECLARE x int := 1; BEGIN EXECUTE format('SET a TO %L', x); EXCEPTION WHEN OTHERS THEN RAISE; END",
		"UPDATE ONLY s.t AS x SET n = x.n + $1::int WHERE k IN (1, 2) RETURNING *", "DELETE FROM \"t\"\"\" y WHERE y.k = 'a';", "update t set", "delete from t where a.b.",
	} {
		f.Add(sql)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		type read struct {
			SQL, PLpgSQL Routine
			Names        []string
			Reading      Reading
			Body         string
			Do           bool
			Serial       SerialShape
			Fit          bool
		}
		all := func() (r read) {
			r.SQL, r.PLpgSQL = RoutineSQL(sql), RoutinePLpgSQL(sql)
			r.Reading = EachName(sql, func(name []byte) { r.Names = append(r.Names, string(name)) })
			r.Body, r.Do = DoBody(sql)
			r.Serial, r.Fit = Serial(sql)
			return r
		}
		got := all()
		if diff := cmp.Diff(got, all()); diff != "" {
			t.Fatalf("%q: not deterministic\n%s", sql, diff)
		}
		if got.Do && Scan(sql).Verb != VerbDo {
			t.Fatalf("%q: a DO that is a %v", sql, Scan(sql).Verb)
		}
		if !got.Fit {
			return
		}
		var text Text
		text.Read(sql)
		if again, ok := text.Serial(); !ok || !cmp.Equal(got.Serial, again) {
			t.Fatalf("%q: %+v, cut into tokens %+v", sql, got.Serial, again)
		}
		if st := Scan(sql); !within(sql, got.Serial.Table) || st.Verb != VerbUpdate && st.Verb != VerbDelete || st.Count != 1 {
			t.Fatalf("%q: %+v is a %v", sql, got.Serial, st.Verb)
		}
	})
}

// Serial takes apart an UPDATE or DELETE of the form
//
//	UPDATE [ONLY] table [[AS] alias] SET ... [WHERE ...] [RETURNING ...] [;]
//	DELETE FROM [ONLY] table [[AS] alias] [WHERE ...] [RETURNING ...] [;]
//
// without other tables, subqueries, cursors, and anything that is not known to
// be quiet; what it does not know it refuses. In a session with
// standard_conforming_strings=off the result is void if Scan finds EffBackslash.
func Serial(sql string) (SerialShape, bool) { return serial(lexer{sql: sql}) }
