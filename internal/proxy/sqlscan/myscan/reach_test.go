package myscan

import (
	"slices"
	"testing"
)

func TestReadBody(t *testing.T) {
	const told = EffUnknownFunc
	for _, tc := range []struct {
		body    string
		effects Effect
		calls   []string
	}{
		{body: "RETURN a + 1"},
		{body: "BEGIN DECLARE x VARCHAR(10) DEFAULT ''; SET x = CONCAT(a, 'b'); RETURN x; END"},
		{body: "SET NEW.a = UPPER(NEW.a), NEW.b = now()"},
		{body: "BEGIN INSERT INTO log (a, b) VALUES (NEW.a, 1); UPDATE n SET c = c + 1, d = 2 WHERE id = 1; END"},
		{body: "BEGIN DECLARE CONTINUE HANDLER FOR NOT FOUND SET x = 1; END", effects: told},
		{body: "BEGIN DECLARE x INT; DECLARE EXIT HANDLER FOR NOT FOUND SET x = 1; SELECT a INTO x FROM t LOCK IN SHARE MODE; END"},
		{body: "select `e`.`f6`() AS `z`", calls: []string{"f6"}},
		{body: "select last_insert_id() AS `l`", effects: EffLastID},
		{body: "BEGIN INSERT INTO t (a) VALUES (1); SELECT LAST_INSERT_ID(), ROW_COUNT(); END"},
		{body: "SELECT ROW_COUNT()", effects: EffDiag},
		{body: "RETURN LAST_INSERT_ID(5)", effects: EffSetLastID | told},
		{body: "BEGIN SET SESSION time_zone='+09:00'; RETURN 1; END", effects: told},
		{body: "BEGIN DECLARE x INT; SET x = 1, @@session.sql_mode = ''; END", effects: told},
		{body: "BEGIN DECLARE x INT; SET x = 1, @@sql_mode = ''; END", effects: EffOpaque | told},
		{body: "SET @a = 1", effects: EffUserVarWrite | told},
		{body: "SELECT a INTO @x FROM t", effects: EffUserVarWrite | told},
		{body: "RETURN GET_LOCK(n, 0)", effects: EffLock},
		{body: "BEGIN DO GET_LOCK('proc',0); END", effects: EffLock},
		{body: "BEGIN FLUSH TABLES WITH READ LOCK; END", effects: EffTableLock},
		{body: "BEGIN XA START 'x'; END", effects: EffXA},
		{body: "BEGIN SET TRANSACTION READ ONLY; END", effects: EffNextTx | told},
		{body: "BEGIN SET ROLE none; END", effects: EffRole | told},
		{body: "BEGIN SET SESSION session_track_system_variables=''; END", effects: EffOpaque | told},
		{body: "BEGIN SET @@session.session_track_schema=0; END", effects: EffOpaque | told},
		{body: "BEGIN SET NAMES latin1; END", effects: EffOpaque | told},
		{body: "BEGIN SET RESOURCE GROUP g; END", effects: EffGroup | told},
		{body: "BEGIN DECLARE resource INT; SET resource = 1; END"},
		{body: "UPDATE t SET resource = 1"},
		{body: "BEGIN EXECUTE IMMEDIATE s; END", effects: EffOpaque | told},
		{body: "BEGIN PREPARE q FROM @s; EXECUTE q; END", effects: EffUserVarWrite | EffOpaque | told},
		{body: "BEGIN CREATE TEMPORARY TABLE tt (i INT); END", effects: EffDDL | told},
		{body: "BEGIN CALL p; CALL e.q(1); END", calls: []string{"p", "q"}},
		{body: "BEGIN IF f(1) THEN SET NEW.a = g (2); END IF; END", calls: []string{"f", "g"}},
		{body: "SELECT NEXT VALUE FOR s", effects: EffSequence},
		{body: "SELECT @@last_insert_id", effects: EffLastID | EffSetLastID | told},
		{body: "SELECT 'unterminated", effects: EffOpaque | told},
	} {
		got := ReadBody(tc.body, Mode{MariaDB: true, Version: 101100})
		if got.Effects != tc.effects || !slices.Equal(got.Calls, tc.calls) {
			t.Errorf("%s\n  effects %s, calls %q\n  want    %s, %q", tc.body, got.Effects, got.Calls, tc.effects, tc.calls)
		}
	}
}

func TestWithoutConstants(t *testing.T) {
	for _, tt := range []struct {
		mode          Mode
		sql, want     string
		eachTimeLexed bool
	}{
		{sql: "INSERT INTO `t` (a) VALUES (1, 'x', -2.5, X'ff', f(3)) -- 4", want: "INSERT INTO `t` ( a ) VALUES ( ? , ? , - ? , ? , f ( ? ) ) "},
		{sql: `SELECT "a" FROM t`, want: "SELECT ? FROM t "},
		{mode: Mode{AnsiQuotes: true}, sql: `SELECT "a" FROM t`, want: `SELECT "a" FROM t `},
		{sql: "SELECT @v, @@x, ? FROM t1", want: "SELECT @v , @@x , ? FROM t1 "},
		{sql: "SELECT /*! 1, */ 2", eachTimeLexed: true},
		{sql: "SELECT 'open", eachTimeLexed: true},
	} {
		var text Text
		text.Read(tt.sql, tt.mode)
		if got, ok := text.WithoutConstants(); got != tt.want || ok == tt.eachTimeLexed {
			t.Errorf("%s: %q, %v, want %q", tt.sql, got, ok, tt.want)
		}
	}
}

func TestNames(t *testing.T) {
	var got []string
	Names("SELECT a.`B c`, f(1), 'x y' FROM /*! Db */ . V -- z\n WHERE \"q\" = 1", Mode{AnsiQuotes: true}, func(name string, call bool) bool {
		if call {
			name += "()"
		}
		got = append(got, name)
		return true
	})
	want := []string{"select", "a", "b c", "f()", "from", "db", "v", "where", "q"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
