package catalogue

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// rows are lines of values that are separated by "|"; "-" is NULL.
func rows(lines ...string) (list [][][]byte) {
	for _, line := range lines {
		var row [][]byte
		for v := range strings.SplitSeq(line, "|") {
			if v == "-" {
				row = append(row, nil)
				continue
			}
			row = append(row, []byte(v))
		}
		list = append(list, row)
	}
	return list
}

// indexOf returns the index of a server that answers like this to the queries which begin so.
func indexOf(t *testing.T, mariadb bool, trust []string, answers map[string][][][]byte) (*Reader, *Index) {
	t.Helper()
	r := NewReader(myscan.Mode{MariaDB: mariadb, Version: 100600}, trust)
	left := len(answers)
	for _, step := range r.Steps() {
		var got [][][]byte
		for table, rows := range answers {
			if strings.Contains(step.SQL, " FROM information_schema."+table+" ") {
				got = rows
				left--
			}
		}
		step.Take(got)
	}
	if left != 0 {
		t.Fatalf("%d of %d answers were asked for", len(answers)-left, len(answers))
	}
	return r, r.Index()
}

var server = map[string][][][]byte{
	"SCHEMATA s": rows("-|-"), // it sees all routines
	"VIEWS": rows(
		"v|select get_lock('a', 0) AS x|app", "over_v|select x from v|app", "over_t|select i from t|app", "hidden|-|app"),
	"ROUTINES": rows("sets|BEGIN SET @a = 1; RETURN 1; END||app", "calls|RETURN sets()||app", "quiet|RETURN 1||app", "library|-||app"),
	"TRIGGERS": rows("t|SET @fired = 1||app|INSERT", "u|SET @fired = 1||app|UPDATE", "t|SET NEW.i = 1||other|INSERT"),
	"COLUMNS":  rows("d|(@a := 1)|app"),
}

func TestReach(t *testing.T) {
	t.Parallel()
	_, x := indexOf(t, true, nil, server)
	const none = myscan.Effect(0)
	for _, tt := range []struct {
		db, sql   string
		has, lack myscan.Effect
	}{
		{"app", "SELECT 1", none, ^none},
		{"app", "SELECT x FROM v", myscan.EffLock | myscan.EffLockUnseen, myscan.EffUserVarWrite},
		{"app", "SELECT x FROM over_v", myscan.EffLock | myscan.EffLockUnseen, myscan.EffUserVarWrite},
		{"app", "SELECT x FROM hidden", myscan.EffOpaque, none},
		{"other", "SELECT x FROM v", none, ^none},
		{"other", "SELECT x FROM app.v", myscan.EffLock, none},
		{"other", "USE app; SELECT x FROM v", myscan.EffLock, none},
		{"app", "SELECT i FROM t", none, myscan.EffUserVarWrite},
		{"app", "INSERT INTO t VALUES (1)", myscan.EffUserVarWrite, myscan.EffOpaque},
		{"app", "INSERT INTO T VALUES (1)", myscan.EffUserVarWrite, none},
		{"app", "INSERT INTO over_t VALUES (1)", myscan.EffUserVarWrite, none},
		{"other", "INSERT INTO t VALUES (1)", none, myscan.EffUserVarWrite},
		{"app", "INSERT INTO u VALUES (1)", none, myscan.EffUserVarWrite},
		{"app", "INSERT INTO u VALUES (1) ON DUPLICATE KEY UPDATE i = 1", myscan.EffUserVarWrite, none},
		{"app", "UPDATE u SET i = 1", myscan.EffUserVarWrite, none},
		{"app", "SELECT sets()", myscan.EffUserVarWrite, myscan.EffOpaque},
		{"app", "SELECT calls()", myscan.EffUserVarWrite, myscan.EffOpaque},
		{"app", "SELECT quiet()", none, myscan.EffUserVarWrite | myscan.EffOpaque},
		{"app", "SELECT library()", myscan.EffOpaque, none},
		{"app", "SELECT nowhere()", myscan.EffOpaque, none},
		{"app", "INSERT INTO d VALUES (1)", myscan.EffUserVarWrite, none},
		{"app", "SELECT DEFAULT(x) FROM d", myscan.EffUserVarWrite, none},
		{"sys", "SELECT 1", myscan.EffOpaque, none},
	} {
		mode := myscan.Mode{MariaDB: true, Version: 100600, Multi: true}
		var text myscan.Text
		text.Read(tt.sql, mode)
		info := text.Scan()
		if e := x.Reach(&text, &info, tt.db); !e.Has(tt.has) && tt.has != 0 || e.Has(tt.lack) {
			t.Errorf("in %s: %s has %v", tt.db, tt.sql, e)
		}
	}
}

func TestWhatIsTrustedHasNoEffects(t *testing.T) {
	t.Parallel()
	for trust, want := range map[string]bool{"sets": false, "app.sets": false, "other.sets": true, "*": false} {
		_, x := indexOf(t, true, []string{trust}, server)
		var text myscan.Text
		text.Read("SELECT sets()", myscan.Mode{})
		info := text.Scan()
		if got := x.Reach(&text, &info, "app").Has(myscan.EffUserVarWrite); got != want {
			t.Errorf("with %q trusted, sets() has its effect: %v", trust, got)
		}
	}
}

func TestHiddenTriggers(t *testing.T) {
	t.Parallel()
	var none *Index
	if none.HidesTriggers("t") {
		t.Error("an index that is not there hides triggers")
	}
	answers := map[string][][][]byte{"SCHEMATA s": rows("app|me@%", "-|-")}
	insert := func(x *Index) myscan.Effect {
		var text myscan.Text
		text.Read("INSERT INTO t VALUES (1)", myscan.Mode{})
		info := text.Scan()
		return x.Reach(&text, &info, "app")
	}
	r, x := indexOf(t, true, nil, answers)
	if account, n, grant := r.Grant(); !r.Blind() || account != "me@%" || n != 1 || grant != "GRANT TRIGGER ON `app`.* TO `me`@`%`;" {
		t.Errorf("blind %v: grant %q %d %q", r.Blind(), account, n, grant)
	}
	if !insert(x).Has(myscan.EffOpaque) || x.HidesTriggers("t") {
		t.Errorf("an INSERT whose triggers are hidden has %v", insert(x))
	}
	r.SeeAll(rows("t|SET @fired = 1||app|INSERT"))
	if x := r.Index(); r.Blind() || insert(x).Has(myscan.EffOpaque) || !insert(x).Has(myscan.EffUserVarWrite) || !x.HidesTriggers("T") || x.HidesTriggers("u") {
		t.Errorf("another user sees its triggers: blind %v, effects %v", r.Blind(), insert(x))
	}
	if r, x := indexOf(t, true, []string{"*"}, answers); r.Blind() || insert(x) != 0 {
		t.Errorf("with everything trusted: blind %v, effects %v", r.Blind(), insert(x))
	}
}

func TestLocksMore(t *testing.T) {
	t.Parallel()
	_, quiet := indexOf(t, true, nil, nil)
	_, x := indexOf(t, true, nil, server)
	if !x.LocksMore(quiet) || quiet.LocksMore(x) || x.LocksMore(x) {
		t.Errorf("%v %v %v", x.LocksMore(quiet), quiet.LocksMore(x), x.LocksMore(x))
	}
}

func TestCounters(t *testing.T) {
	t.Parallel()
	before := Counters(rows("Com_create_view|1", "Com_create_index|1", "Uptime_since_flush_status|5"))
	if same := Counters(rows("Com_create_view|1", "Com_create_index|2", "Uptime_since_flush_status|6")); same != before {
		t.Errorf("%q and %q differ", before, same)
	}
	if other := Counters(rows("Com_create_view|2")); other == before {
		t.Errorf("%q does not differ", other)
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		row, sql  string
		plain     bool
		generates bool
	}{
		{"InnoDB|BASE TABLE|0|Id", "INSERT INTO t (v) VALUES (1)", true, true},
		{"InnoDB|BASE TABLE|0|Id", "INSERT INTO t (ID, v) VALUES (1, 1)", true, false},
		{"InnoDB|BASE TABLE|0|Id", "INSERT INTO t VALUES (1, 1)", true, false},
		{"InnoDB|BASE TABLE|0|-", "INSERT INTO t VALUES (1, 1)", true, true},
		{"InnoDB|BASE TABLE|0|-", "INSERT INTO t (my_row_id) VALUES (1)", true, false},
		{"InnoDB|BASE TABLE|1|-", "", false, false},
		{"Aria|BASE TABLE|0|-", "", false, false},
		{"InnoDB|VIEW|0|-", "", false, false},
	} {
		table, plain := ReadTable(rows(tt.row))
		if plain != tt.plain {
			t.Errorf("%s: plain %v", tt.row, plain)
		}
		if !plain {
			continue
		}
		ins, ok := myscan.Insert(tt.sql, myscan.Mode{})
		if got := table.Generates(&ins); !ok || got != tt.generates || table.Counts() != strings.Contains(tt.row, "Id") {
			t.Errorf("%s, %s: generates %v, counts %v", tt.row, tt.sql, got, table.Counts())
		}
	}
	if _, plain := ReadTable(nil); plain {
		t.Error("a table that is not there is plain")
	}
}
