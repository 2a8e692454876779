package myscan

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

func TestInsertShape(t *testing.T) {
	for _, c := range []struct {
		sql     string
		want    InsertShape
		columns []string
	}{
		{
			"INSERT INTO t (a, b) VALUES (?, ?)",
			InsertShape{
				Shape:  lexicon.Shape{Prefix: "INSERT INTO t (a, b) VALUES", Tuple: "(?, ?)", Arity: 2},
				Target: "t", Table: "t", ColumnList: "(a, b)", Params: 2,
			},
			[]string{"a", "b"},
		},
		{
			"/* batch:10 */ insert d.`t``x`(`a b`,C)value/* c */('it''s', -1.5e3, \"x\", null) -- d\n returning a, lower(b); -- end",
			InsertShape{
				Shape:  lexicon.Shape{Prefix: "insert d.`t``x`(`a b`,C)value", Tuple: "('it''s', -1.5e3, \"x\", null)", Suffix: " -- d\n returning a, lower(b)", Arity: 4, Returning: true, Literals: true},
				Target: "d.`t``x`", Schema: "d", Table: "t`x", ColumnList: "(`a b`,C)",
			},
			[]string{"a b", "C"},
		},
		{
			"insert into t values ()",
			InsertShape{
				Shape:  lexicon.Shape{Prefix: "insert into t values", Tuple: "()"},
				Target: "t", Table: "t",
			},
			nil,
		},
		{
			"insert into t () values (default)",
			InsertShape{
				Shape:  lexicon.Shape{Prefix: "insert into t () values", Tuple: "(default)", Arity: 1},
				Target: "t", Table: "t", ColumnList: "()",
			},
			nil,
		},
		{
			"insert into t values (now(), concat(?, lower('X')), 1 + 2 * (3 div 4), cast('1' as unsigned integer), convert(? using utf8mb4), _utf8mb4'x' collate utf8mb4_bin, " +
				"date_add(current_timestamp, interval 1 day), date '2020-01-01', case when ? is null then 1 else 2 end, x'4142', 0x41, true, if(? in (1, 2), 'a', 'b'), not ?)",
			InsertShape{
				Shape: lexicon.Shape{Prefix: "insert into t values", Tuple: "(now(), concat(?, lower('X')), 1 + 2 * (3 div 4), cast('1' as unsigned integer), convert(? using utf8mb4), _utf8mb4'x' collate utf8mb4_bin, " +
					"date_add(current_timestamp, interval 1 day), date '2020-01-01', case when ? is null then 1 else 2 end, x'4142', 0x41, true, if(? in (1, 2), 'a', 'b'), not ?)", Arity: 14, Literals: true},
				Target: "t", Table: "t", Params: 5,
			},
			nil,
		},
	} {
		got, ok := Insert(c.sql, Mode{})
		if !ok {
			t.Errorf("%s: refused", c.sql)
			continue
		}
		if diff := cmp.Diff(c.want, got, cmpopts.IgnoreUnexported(InsertShape{}), cmpopts.IgnoreFields(InsertShape{}, "TupleAt")); diff != "" {
			t.Errorf("%s (-want +got)\n%s", c.sql, diff)
		}
		if columns := slices.Collect(got.Columns()); !slices.Equal(columns, c.columns) {
			t.Errorf("%s: columns %q, want %q", c.sql, columns, c.columns)
		}
	}
}

func TestInsertRefuses(t *testing.T) {
	for _, sql := range []string{
		"", "select 1", "insert", "insert into", "insert into t", "insert into t values", "insert into t values (?",
		"replace into t values (1)", "insert ignore into t values (1)", "insert low_priority into t values (1)", "insert delayed t values (1)",
		"insert high_priority into t values (1)", "insert into t partition (p) values (1)", "insert into t values (1), (2)", "insert into t values row(1)",
		"insert into t select 1", "insert into t (select 1)", "insert into t (a) (select 1)", "insert into t set a = 1", "insert into t table u",
		"insert into t values ((select 1))", "insert into t values ((values (1)))", "insert into t values ((table u))", "insert into t values (exists (select 1))",
		"insert into t values (1) on duplicate key update a = 1", "insert into t values (1) as n", "with a as (select 1) insert into t values (1)",
		"insert into t values (1) returning ?", "insert into t values (1) returning (select 1)", "insert into t values (1) returning", "insert into t values (1) returning @x",
		"insert into t values (f(1))", "insert into t values (d.f(1))", "insert into t values (`f`(1))", "insert into t values (1) returning f(a)",
		"insert into t values (rand())", "insert into t values (uuid())", "insert into t values (uuid_short())", "insert into t values (last_insert_id())",
		"insert into t values (@x)", "insert into t values (@x := 1)", "insert into t values (@@sql_mode)", "insert into t values (sleep(1))",
		"insert into t values (connection_id())", "insert into t values (get_lock('a', 1))", "insert into t values (sysdate())", "insert into t values (next value for s)",
		"insert into t (a, b) values (1, a)", "insert into t (a, b) values (1, `a`)", "insert into t (a, b) values (1, a + 1)", "insert into t (a, b) values (1, t.a)",
		"insert into t (a, b) values (1, default(a))", "insert into t (a, b) values (1, values(a))", "insert into t (day, b) values (1, day)", "insert into t values (1, (day))",
		"insert into t values ('a', date)", "insert into t values (-day)", "insert into t values (lower(a))", "insert into t values (case when a then 1 end)",
		"insert into t (t.a) values (1)", "insert into t (a,) values (1)", "insert into a.b.c values (1)", "insert into 1 values (1)", "insert into t. values (1)",
		"insert into t values (1); select 1", "select 1; insert into t values (1)", "insert into t values ('open", "insert into t values (1) /* open", "insert into t values (1) x",
		"insert into t values (1;2)", "insert into t x values (1)", "insert into t values (1))", "explain insert into t values (1)",
		"insert into t values (1 /*! , 2 */)", "insert /*! ignore */ into t values (1)", "/*!40000 insert */ into t values (1)", "insert into t /*!99999 (a) */ values (1)",
		"insert into t values (1);; select 1", "insert into performance_schema.t values (1)", "insert into t values ({d '2020-01-01'})",
	} {
		for _, mode := range []Mode{{}, multi} {
			if got, ok := Insert(sql, mode); ok {
				t.Errorf("%s: taken as %+v", sql, got)
			}
		}
	}
	if got, ok := Insert("insert into t values (nvl(1, 2))", Mode{}); ok {
		t.Errorf("taken as %+v", got)
	}
	if got, ok := Insert(`insert into t values ("a")`, ansi); ok {
		t.Errorf("taken as %+v", got)
	}
}

func TestAppendMulti(t *testing.T) {
	shape, ok := Insert("insert into t (a) values (?, 'x') returning a", Mode{})
	if !ok {
		t.Fatal("refused")
	}
	for n, want := range map[int]string{
		1: "insert into t (a) values(?, 'x') returning a",
		3: "insert into t (a) values(?, 'x'),(?, 'x'),(?, 'x') returning a",
	} {
		if got := string(shape.AppendMulti(nil, n)); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

func TestShapesThatMayShare(t *testing.T) {
	const base = "insert into t (a, b) values (?, ?)"
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{base, base, true},
		{base, "/* batch:1 */ " + base + " ;", true},
		{base, "insert into t (a, b) values (?, ? + 1)", false},
		{base, "insert into t (b, a) values (?, ?)", false},
		{base, base + " returning a", false},
		{base, "insert into t (a, b) values (?, 2)", false},
		{base, "insert into t (a, b) values (1, 2)", false},
		{"insert into t values (1, 2)", "insert into t values (now(), 'x')", true},
		{"insert into t values (1, 2)", "insert into t values (1)", false},
		{"insert into t values (1)", "insert into u values (1)", false},
		{"insert into t values (1)", "insert into t value (1)", false},
	} {
		a, okA := Insert(c.a, Mode{})
		b, okB := Insert(c.b, Mode{})
		if !okA || !okB {
			t.Errorf("%s, %s: refused", c.a, c.b)
			continue
		}
		if a.Compatible(b) != c.want || b.Compatible(a) != c.want {
			t.Errorf("%s, %s: Compatible is not %t", c.a, c.b, c.want)
		}
		if same := a.ShapeKey() == b.ShapeKey(); same != c.want {
			t.Errorf("%s, %s: equal keys %t, want %t", c.a, c.b, same, c.want)
		}
	}
}

func TestInsertAllocatesNothing(t *testing.T) {
	for _, sql := range []string{
		"insert into orders (id, customer, amount) values (1, 'a name', 12.50)", "/* batch */ insert into `orders` values (?, ?, now())",
	} {
		if n := testing.AllocsPerRun(100, func() { Insert(sql, Mode{}) }); n != 0 {
			t.Errorf("%s: %v allocations", sql, n)
		}
	}
}

// Target returns the one table that an INSERT, REPLACE, UPDATE or DELETE writes
// to, without quotes; schema is "" if the table is not qualified. ok is false for
// any other text, and for one that writes, or might write, to several tables.
func Target(sql string, mode Mode) (schema, table string, ok bool) {
	return target(newLexer(sql, mode))
}
