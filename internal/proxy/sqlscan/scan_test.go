package sqlscan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestScanVerbAndEffects(t *testing.T) {
	for _, c := range []struct {
		sql     string
		verb    Verb
		effects Effect
	}{
		{"", VerbEmpty, 0},
		{" ; -- nothing\n ; /* at all */", VerbEmpty, 0},
		{"select 1", VerbSelect, 0},
		{"SeLeCt * from t where a = $1 and b in (1, 2) order by c limit 10;", VerbSelect, 0},
		{"(select 1) union all (select 2)", VerbSelect, 0},
		{"((values (1)))", VerbValues, 0},
		{"values (1), (2)", VerbValues, 0},
		{"table t", VerbTable, 0},
		{"insert into t (a, b) values ($1, $2)", VerbInsert, EffWrites},
		{"insert into s.t(a,b) values ($1, lower($2)) on conflict (a) do update set (b, c) = (1, 2)", VerbInsert, EffWrites},
		{"insert into t (a) select f from x(1)", VerbInsert, EffWrites | EffUnknownFunc},
		{"update t set a = 1 where b = any($1)", VerbUpdate, EffWrites},
		{"update t set (a, b) = (1, 2)", VerbUpdate, EffWrites},
		{"delete from t using u where t.a = u.a", VerbDelete, EffWrites},
		{"merge into t using (select 1) as u(a) on t.a = u.a when not matched then insert (a) values (u.a)", VerbMerge, EffWrites},
		{"selec 1", VerbOther, EffUnknown},
		{"foo bar", VerbOther, EffUnknown},
		{"42", VerbOther, EffUnknown},

		// WITH: the main verb, and statements in the list that write.
		{"with a as (select 1) select * from a", VerbSelect, 0},
		{"with recursive a (x, y) as materialized (select 1, 2), b (z) as not materialized (select 1) select * from a, b", VerbSelect, 0},
		{"with a as (insert into t values (1) returning *) select * from a", VerbSelect, EffWrites},
		{"with a as (delete from t returning *) select * from a", VerbSelect, EffWrites},
		{"with a as (update t set x = 1 returning *) select * from a", VerbSelect, EffWrites},
		{"with a as (select 1) insert into t select * from a", VerbInsert, EffWrites},
		{"with a as (select 1) delete from t", VerbDelete, EffWrites},
		{"with a as (select 1) (select * from a)", VerbSelect, 0},
		{"with insert as (select 1) select * from insert", VerbSelect, 0},
		{"with a as (with b as (select 1) delete from t returning *) select * from a", VerbSelect, EffWrites},
		{"with a as (select 1) (with b as (select 2) select * from b)", VerbSelect, 0},
		{"with recursive a as (select 1 as n union all select n + 1 from a) search depth first by n set o delete from t", VerbDelete, EffWrites},
		{"with recursive a as (select 1 as n union all select n + 1 from a) search depth first by n set o, b (x) as (select 1) select * from b", VerbSelect, 0},
		{"with recursive a as (select 1 as n) cycle n set c using p update t set x = 1", VerbUpdate, EffWrites},
		{"select (select x from (with y as (select 1) select * from y) z (a))", VerbSelect, 0},
		{"select delete from t", VerbSelect, 0},
		{"select t.update, t.delete from t", VerbSelect, 0},

		// Transactions.
		{"begin", VerbBegin, EffTx},
		{"START TRANSACTION ISOLATION LEVEL SERIALIZABLE", VerbBegin, EffTx},
		{"commit and chain", VerbCommit, EffTx},
		{"end", VerbCommit, EffTx},
		{"rollback", VerbRollback, EffTx},
		{"abort work", VerbRollback, EffTx},
		{"savepoint a", VerbSavepoint, EffTx},
		{"release savepoint a", VerbRelease, EffTx},
		{"rollback to a", VerbRollbackTo, EffTx},
		{"rollback transaction to savepoint a", VerbRollbackTo, EffTx},
		{"prepare transaction 'x'", VerbPrepareTx, EffTx},
		{"commit prepared 'x'", VerbCommitPrepared, EffTx},
		{"rollback prepared 'x'", VerbRollbackPrepared, EffTx},
		{"set constraints all deferred", VerbSet, EffTx},
		{"set transaction read only", VerbSet, EffTx},
		{"set local transaction read only", VerbSet, EffTx},

		// Session state.
		{"listen x", VerbListen, EffListen},
		{"unlisten *", VerbUnlisten, EffRelease},
		{"notify x, 'y'", VerbNotify, 0},
		{"select pg_notify('x', 'y')", VerbSelect, 0},
		{"deallocate p", VerbDeallocate, EffRelease},
		{"deallocate all", VerbDeallocate, EffRelease | EffDeallocateAll},
		{"deallocate prepare all", VerbDeallocate, EffRelease | EffDeallocateAll},
		{"discard all", VerbDiscard, EffRelease | EffDiscardAll},
		{"discard temp", VerbDiscard, EffRelease},
		{"prepare p (int, text) as select $1, f($2)", VerbPrepare, EffPrepare | EffUnknownFunc},
		{"prepare p as insert into t values ($1)", VerbPrepare, EffPrepare | EffWrites},
		{"execute p(1, 2)", VerbExecute, EffPrepare},
		{"declare c cursor with hold for select 1", VerbDeclare, EffHold},
		{"declare c cursor without hold for select 1 for update", VerbDeclare, EffLockRows},
		{"fetch next from c", VerbFetch, 0},
		{"close all", VerbClose, EffRelease},
		{"load 'auto_explain'", VerbLoad, EffLoad},
		{"lock table t in share mode", VerbLock, 0},
		{"select pg_advisory_lock(1)", VerbSelect, EffAdvisory},
		{"select PG_TRY_ADVISORY_LOCK (1)", VerbSelect, EffAdvisory},
		{"select pg_advisory_xact_lock(1)", VerbSelect, 0},
		{"select pg_advisory_unlock_all()", VerbSelect, EffRelease},
		{`select "pg_catalog"."pg_advisory_lock"(1)`, VerbSelect, EffAdvisory},
		{`select other.pg_advisory_lock(1)`, VerbSelect, EffUnknownFunc},
		{"select currval('s'), lastval()", VerbSelect, EffSequenceRead},
		{"select nextval('s')", VerbSelect, EffSequence},
		{"select setseed(0.5)", VerbSelect, EffSeed},
		{"select pg_sleep(1)", VerbSelect, EffSleep},
		{"select set_config('a.b', 'c', true)", VerbSelect, 0},
		{"select set_config('a.b', f(1, 2), TRUE)", VerbSelect, EffUnknownFunc},
		{"select set_config('a.b', 'c', false)", VerbSelect, EffSetConfig},
		{"select set_config('a.b', 'c', not true)", VerbSelect, EffSetConfig},
		{"select set_config('a.b', 'c', $1)", VerbSelect, EffSetConfig},
		{"select pg_catalog.set_config('a.b', 'c', false)", VerbSelect, EffSetConfig},
		{"select current_setting('a')", VerbSelect, EffSessionRead},
		{"select * from pg_stat_activity", VerbSelect, EffSessionRead},
		{`select * from pg_catalog."pg_locks"`, VerbSelect, EffSessionRead},
		{"show work_mem", VerbShow, EffSessionRead},
		{"show weir status", VerbShow, EffWeirShow},
		{"SHOW WEIR STATUS ;", VerbShow, EffWeirShow},
		{"show weir status x", VerbShow, EffSessionRead},
		{"create temp table t (a int)", VerbDDL, EffDDL | EffTemp},
		{"create local temporary table t as select 1", VerbDDL, EffDDL | EffTemp},
		{"create or replace temp view v as select 1", VerbDDL, EffDDL | EffTemp},
		{"select 1 into temp t", VerbSelect, EffDDL | EffWrites | EffTemp},
		{"select 1 into local temp t", VerbSelect, EffDDL | EffWrites | EffTemp},
		{"select 1 into t", VerbSelect, EffDDL | EffWrites},
		{"insert into pg_temp.t values (1)", VerbInsert, EffWrites | EffTemp},
		{"select * from pg_temp_3.t", VerbSelect, EffTemp},
		{"select * from pg_temp_tables", VerbSelect, 0},
		{"do $$ begin perform 1; end $$", VerbDo, EffUnknownFunc},
		{"call p(1)", VerbCall, EffUnknownFunc},

		// Row locks.
		{"select * from t for update", VerbSelect, EffLockRows},
		{"select * from t for no key update of t nowait", VerbSelect, EffLockRows},
		{"select * from t for share", VerbSelect, EffLockRows},
		{"select * from t for key share skip locked", VerbSelect, EffLockRows},

		// DDL and maintenance.
		{"create table t (a int, b varchar(10), unique (a), foreign key (b) references x (y), check (f(a)))", VerbDDL, EffDDL},
		{"create table t as select f(1)", VerbDDL, EffDDL | EffUnknownFunc},
		{"create view v as select f(1)", VerbDDL, EffDDL},
		{"create table t (a int generated always as (b * 2) stored, unique (a), exclude using gist (a with =))", VerbDDL, EffDDL},
		{"create function f() returns int language sql begin atomic select 1; select case when true then 1 end; end", VerbDDL, EffDDL},
		{"drop table t", VerbDDL, EffDDL | EffRelease},
		{"truncate t", VerbDDL, EffDDL | EffWrites},
		{"grant select on t to x", VerbDDL, EffDDL},
		{"refresh materialized view v", VerbDDL, EffDDL},
		{"vacuum (full) t (a, b)", VerbVacuum, 0},
		{"analyze t (a)", VerbVacuum, 0},
		{"explain select f(1)", VerbExplain, EffUnknownFunc},
		{"explain (analyze, buffers) insert into t values (1)", VerbExplain, EffWrites},
		{"explain analyze verbose with a as (select 1) delete from t", VerbExplain, EffWrites},
		{"explain (select 1)", VerbExplain, 0},
		{"explain execute p(1)", VerbExplain, EffPrepare},
		{"copy t (a, b) from stdin with (format csv, force_null (a))", VerbCopy, EffCopy | EffWrites},
		{"copy t from stdin where f(a)", VerbCopy, EffCopy | EffWrites | EffUnknownFunc},
		{"copy t to stdout", VerbCopy, EffCopy},
		{"copy (select f(1)) to stdout", VerbCopy, EffCopy | EffUnknownFunc},
		{"copy (delete from t returning *) to stdout", VerbCopy, EffCopy | EffWrites},

		// Literals hide everything.
		{"select 'a'' for update; select f(1)'", VerbSelect, 0},
		{`select E'a\' for update; select f(1)'`, VerbSelect, 0},
		{`select 'a\', f('b')`, VerbSelect, EffUnknownFunc | EffBackslash},
		{"select E'a'\n'\\' f(1)'", VerbSelect, 0},
		{"select $x$ f(1); $$ $x$", VerbSelect, 0},
		{`select "f(" from t`, VerbSelect, 0},
		{`select U&"f(", U&'f('`, VerbSelect, 0},
		{"select 1 /* f( /* nested */ g( */ -- h(\n", VerbSelect, 0},
		{"select a$b$c from t", VerbSelect, 0},
		{"select 'open", VerbSelect, EffUnknown},
		{"select 1 /* open", VerbSelect, EffUnknown},
		{"select $a$ open $b$", VerbSelect, EffUnknown},
		{`select "open`, VerbSelect, EffUnknown},

		// Several statements.
		{"select 1; delete from t", VerbSelect, EffMulti | EffWrites},
		{"set a = 1; set b = 2", VerbSet, EffSet | EffMulti},
		{"begin; select f(1); commit", VerbBegin, EffMulti | EffTx | EffUnknownFunc},
	} {
		got := Scan(c.sql)
		if got.Verb != c.verb || got.Effects != c.effects {
			t.Errorf("%s\n got %v %v\nwant %v %v", c.sql, got.Verb, got.Effects, c.verb, c.effects)
		}
	}
}

func TestScanTellsCallsFromOtherParentheses(t *testing.T) {
	harmless := []string{
		"select count(*), coalesce(a, b), cast(a as numeric(10, 2)), x::varchar(10), x::public.vector(3)",
		"select extract(epoch from now()), position('a' in b), trim(both from b), substring(a from 1 for 2)",
		"select row_number() over (partition by (a) order by (b)), sum(a) filter (where b) over (w) from t window w as (order by a)",
		"select percentile_cont(0.5) within group (order by a) from t group by grouping sets ((a), (b)), rollup (a)",
		"select * from t a (x, y) join lateral (select 1) b on (true) join (c) using (x)",
		"select * from generate_series(1, 2) with ordinality g (a, b)",
		"select * from json_to_record('{}') as x (a int, b numeric(1, 2), c public.geo(3))",
		"select * from t where exists (select 1) and not (a) and a = all (select 1) and b like ('x') escape ('y')",
		"select now() at time zone ('utc'), interval '1' hour, timestamp(3) '2020-01-01'",
		"select a operator(pg_catalog.+) lower(b), array(select 1), row(1, 2), greatest(1, 2), left('a', 1), right('a', 1)",
		"select pg_catalog.lower('x'), PG_CATALOG.UPPER('x')",
		"select (a).b, a[1], (f).g from t tablesample bernoulli (1) repeatable (2)",
		"select a::character varying(3) from t inner join (select 1) x on (a) left outer join (u cross join v) on (b) where name not like ('x')",
		"select case when (a) then (b) else (c) end, distinct_on (1) from t",
	}
	for _, sql := range harmless[:len(harmless)-1] {
		if s := Scan(sql); s.Effects != 0 {
			t.Errorf("%s\n got %v", sql, s.Effects)
		}
	}
	for _, sql := range []string{
		harmless[len(harmless)-1],
		"select f(1)", "select lower(f(1))", "select public.lower('x')", "select pg_catalog.nosuch(1)",
		`select "LOWER"('x')`, `select U&"lower"('x')`, "select a.b.lower('x')",
		"select distinct on (a) f(b) from t", "select a operator(s.+) f(b)",
		"select * from f(1)", "select * from t, lateral f(1) g (a)", "select * from t join f(1) g on true",
		"select case when f(1) then 1 end", "select a and f(1)", "select a -f(1)", "select 'x' || f(1)",
		"select query_to_xml('select 1', true, true, '')", "select lo_import('/x')", "select pg_terminate_backend(1)",
		"select by(1)", "select sets(1)", "select escape(1)", "select a, join(1)", "select repeatable(1)", "select (operator(1))",
		"select over(1)", "select filter(1)", "select first(1)", "select a like escape(1)", "select set(1)", "select insert(1)",
		"select dblink('a', 'b')", "select /* c */ f /* d */ (1)", "select f\n(1)", "select x at time zone f(1)",
		"values (f(1))", "select array[f(1)]", "select (f(1)).a", "select 1 limit f(1)", "select * from rows from (f(1))",
		"with a as (select 1) select f(1)", "with a as (select f(1)) select 1", "select overlay('a' placing f(1) from 2)",
	} {
		if s := Scan(sql); !s.Effects.Has(EffUnknownFunc) {
			t.Errorf("%s\n got %v, want unknown-func", sql, s.Effects)
		}
	}
}

func TestScanSet(t *testing.T) {
	for _, c := range []struct {
		sql     string
		effects Effect
		want    SetClause
	}{
		{"set work_mem to '64MB'", EffSet, SetClause{Name: "work_mem", Value: "'64MB'"}},
		{"SET Work_Mem='64MB' ; ", EffSet, SetClause{Name: "work_mem", Value: "'64MB'"}},
		{"set a.B /* x */ = 1, 'two' , three -- y\n", EffSet, SetClause{Name: "a.b", Value: "1, 'two' , three"}},
		{`set "DateStyle" to iso, mdy`, EffSet, SetClause{Name: "datestyle", Value: "iso, mdy"}},
		{"set x = -1.5", EffSet, SetClause{Name: "x", Value: "-1.5"}},
		{"set session x = on", EffSet, SetClause{Name: "x", Value: "on", Session: true}},
		{"set local x = on", EffSet, SetClause{Name: "x", Value: "on", Local: true}},
		{"set x to default", EffSet, SetClause{Name: "x", Default: true}},
		{"set x = 'default'", EffSet, SetClause{Name: "x", Value: "'default'"}},
		{"set time zone 'Europe/Amsterdam'", EffSet, SetClause{Name: "timezone", Value: "'Europe/Amsterdam'"}},
		{"set local time zone -7", EffSet, SetClause{Name: "timezone", Value: "-7", Local: true}},
		{"set time zone local", EffSet, SetClause{Name: "timezone", Default: true}},
		{"set time zone default", EffSet, SetClause{Name: "timezone", Default: true}},
		{"set time zone interval '1' hour to minute", EffSet | EffSetUnknown, SetClause{Name: "timezone", Value: "interval '1' hour to minute"}},
		{"set timezone = 'UTC'", EffSet, SetClause{Name: "timezone", Value: "'UTC'"}},
		{"set names 'utf8'", EffSet, SetClause{Name: "client_encoding", Value: "'utf8'"}},
		{"set names", EffSet, SetClause{Name: "client_encoding", Default: true}},
		{"set names = 1", EffSet, SetClause{Name: "names", Value: "1"}},
		{"set schema 'x'", EffSet, SetClause{Name: "search_path", Value: "'x'"}},
		{"set xml option document", EffSet, SetClause{Name: "xmloption", Value: "document"}},
		{"set x from current", EffSetUnknown, SetClause{Name: "x"}},
		{"set session characteristics as transaction read only", EffSetUnknown, SetClause{}},
		{"set seed to 0.5", EffSetUnknown | EffSeed, SetClause{Name: "seed", Value: "0.5"}},
		{"set catalog 'x'", EffSetUnknown, SetClause{Name: "catalog"}},
		{"set role x", EffRole, SetClause{}},
		{"set local role none", EffRole, SetClause{}},
		{"set role = x", EffRole, SetClause{}},
		{"set session authorization default", EffRole, SetClause{}},
		{"set session session authorization x", EffRole, SetClause{}},
		{"set session_authorization = x", EffRole, SetClause{Name: "session_authorization", Value: "x"}},
		{"set", EffSetUnknown, SetClause{}},
		{"set x =", EffSetUnknown, SetClause{Name: "x"}},
		{"reset Work_mem", EffSet | EffRelease, SetClause{Name: "work_mem", Reset: true}},
		{"reset a.b", EffSet | EffRelease, SetClause{Name: "a.b", Reset: true}},
		{"reset time zone", EffSet | EffRelease, SetClause{Name: "timezone", Reset: true}},
		{"reset all", EffSet | EffRelease, SetClause{Reset: true, All: true}},
		{"reset role", EffRole | EffRelease, SetClause{Name: "role", Reset: true}},
		{"reset session authorization", EffRole | EffRelease, SetClause{}},
		{"reset transaction isolation level", EffTx | EffRelease, SetClause{}},
	} {
		got := Scan(c.sql)
		if diff := cmp.Diff(c.want, got.Set); diff != "" || got.Effects != c.effects {
			t.Errorf("%s: effects %v, want %v; set (-want +got)\n%s", c.sql, got.Effects, c.effects, diff)
		}
	}
}

func TestScanName(t *testing.T) {
	long := strings.Repeat("é", 40)
	for sql, want := range map[string]string{
		"deallocate Foo":                "foo",
		"deallocate prepare \"Foo\"":    "Foo",
		"deallocate prepare":            "prepare",
		"deallocate all":                "",
		`deallocate "all"`:              "all",
		`execute "a""b"(1)`:             `a"b`,
		"prepare P(int) as select 1":    "p",
		"prepare p as deallocate q":     "p",
		"prepare transaction 'x'":       "",
		"declare C cursor for select 1": "c",
		"fetch forward 10 from C":       "c",
		"move c;":                       "c",
		"close C":                       "c",
		"close all":                     "",
		"listen " + long:                long[:62],
		"unlisten *":                    "",
		"listen a; listen b":            "a, b",
		"explain analyze execute P(1)":  "p",
		"create temp table t (a) as execute P(1) with no data": "p",
		"explain create table t as execute p":                  "p",
		"create table t as select execute from a":              "",
		"create table execute (a int)":                         "",
		"begin; execute a; select 1; deallocate b":             ", a, b",
	} {
		s := Scan(sql)
		if got := strings.Join(append([]string{s.Name}, s.Names...), ", "); got != want {
			t.Errorf("%s: name %q, want %q", sql, got, want)
		}
	}
}

func TestScanCountsStatements(t *testing.T) {
	for sql, want := range map[string]int{
		"":                               0,
		";;":                             0,
		"select 1":                       1,
		"select 1;":                      1,
		";;select 1;;":                   1,
		"select 1; -- two\nselect 2":     2,
		"select ';'; select $$;$$":       2,
		"select 1 -- ; not here\n; -- x": 1,
		"create rule r as on insert to t do also (delete from a; delete from b)":        1,
		"create function f() returns int begin atomic select 1; select 2; end; table t": 2,
		"begin; commit": 2,
	} {
		got := Scan(sql)
		if got.Count != want || got.Effects.Has(EffMulti) != (want > 1) {
			t.Errorf("%s: count %d, want %d (%v)", sql, got.Count, want, got.Effects)
		}
	}
}

func TestReadOnly(t *testing.T) {
	for sql, want := range map[string]bool{
		"select 1": true, "values (1)": true, "table t": true, "show x": true,
		"select pg_sleep(1)": true, `select 'a\b'`: true,
		"select * from t for share": false, "select f(1)": false, "select nextval('s')": false,
		"select 1 into t": false, "with a as (delete from t returning 1) select 1": false,
		"insert into t values (1)": false, "begin": false, "select 1; select 2": false,
		"select 'open": false, "explain select 1": false,
	} {
		if got := Scan(sql).ReadOnly(); got != want {
			t.Errorf("%s: ReadOnly %t, want %t", sql, got, want)
		}
	}
}

func TestConform(t *testing.T) {
	for sql, want := range map[string]string{
		``:                              ``,
		`\`:                             `\`,
		`select E'a\'b', $$\$$, "\"`:    `select E'a\'b', $$\$$, "\"`,
		`select 'a', /* \' */ 'b' -- \`: `select 'a', /* \' */ 'b' -- \`,
		`'\\'`:                          ` E'\\'`,
		`select 'a\', f('b')`:           `select  E'a\', f('b')`,
		`select '\'; drop table t; --'`: `select  E'\'; drop table t; --'`,
		`select date'\\', n'\'', N'x'`:  `select date E'\\',  E'\'', N'x'`,
		"select 'a'\n'\\'' from t":      "select  E'a'\n'\\'' from t",
		`select B'\', 'x`:               `select B'\', 'x`,
		`select 'x\`:                    `select  E'x\`,
	} {
		if got := Conform(sql); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", sql, got, want)
		}
	}
}

func TestDeepNestingIsUnknown(t *testing.T) {
	deep := "select " + strings.Repeat("(", 100) + "1" + strings.Repeat(")", 100)
	if s := Scan(deep); !s.Effects.Has(EffUnknown) || s.Verb != VerbSelect {
		t.Errorf("got %v %v", s.Verb, s.Effects)
	}
}

func TestNamesOfVerbsAndEffects(t *testing.T) {
	for v := range verbCount {
		if v.String() == "" {
			t.Errorf("verb %d has no name", v)
		}
	}
	if 1<<len(effectNames) != effectEnd {
		t.Errorf("%d names for effects up to %b", len(effectNames), effectEnd)
	}
	if got := (EffTx | EffWrites).String(); got != "tx|writes" {
		t.Errorf("got %q", got)
	}
	if got := Effect(0).String(); got != "none" {
		t.Errorf("got %q", got)
	}
}

func TestScanDoesNotAllocate(t *testing.T) {
	for _, sql := range []string{
		"select abalance from pgbench_accounts where aid = 12345",
		"/*route='x',batch='10'*/ insert into t (a, b) values ($1, $2) returning id",
		"set work_mem = '64MB'",
	} {
		if n := testing.AllocsPerRun(100, func() { Scan(sql) }); n != 0 {
			t.Errorf("%s: %v allocations", sql, n)
		}
	}
}

// TestHostileTextsAreReadOnce has texts that tempt a scanner to look ahead over
// the rest again and again. Quadratic work on them would take minutes.
func TestHostileTextsAreReadOnce(t *testing.T) {
	const size = 32 << 10
	for _, part := range []string{
		"+-", "set_config(", "values(1),(", "in (1,", ".a", "'", "'a'\n", "$a$", "$a", "/*", "with a as (", "--", "(", ")", "array[",
		"\"", "e'\\", "x,", "f(", "a='b',", ";", "case ", "@-", "distinct on (", "1.", "\\",
	} {
		for _, start := range []string{"", "select ", "set a", "reset a", "insert into t values (", "/* batch:1 ", "with a as ("} {
			sql := start + strings.Repeat(part, size/len(part))
			Scan(sql)
			Insert(sql)
			Fingerprint(sql)
		}
	}
	if l := (lexer{sql: strings.Repeat("+-", 3)}); l.next().end != 1 || l.next().end != 2 || l.next().end != 3 {
		t.Error("signs are not given back one by one")
	}
}
