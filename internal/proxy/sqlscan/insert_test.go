package sqlscan

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

func TestInsertShape(t *testing.T) {
	for _, c := range []struct {
		sql  string
		want InsertShape
	}{
		{
			"INSERT INTO t (a, b) VALUES ($1, $2)",
			InsertShape{
				Shape: lexicon.Shape{Prefix: "INSERT INTO t (a, b) VALUES", Tuple: "($1, $2)", Arity: 2},
				Table: "t", ColumnList: "(a, b)", Params: []ParamRef{{1, 3, 1}, {5, 7, 2}}, MaxParam: 2,
			},
		},
		{
			"/* batch:10 */ insert into s.\"T\"as x(a)overriding system value values/* c */($12) -- d\n returning a, lower(b); -- end",
			InsertShape{
				Shape: lexicon.Shape{Prefix: `insert into s."T"as x(a)overriding system value values`, Tuple: "($12)", Suffix: " -- d\n returning a, lower(b)", Arity: 1, Returning: true},
				Table: `s."T"`, ColumnList: "(a)", Params: []ParamRef{{1, 4, 12}}, MaxParam: 12,
			},
		},
		{
			"insert into t values (1, 'x,)', array[1, 2], default, null, f.x)",
			InsertShape{
				Shape: lexicon.Shape{Prefix: "insert into t values", Tuple: "(1, 'x,)', array[1, 2], default, null, f.x)", Arity: 6, Literals: true},
				Table: "t",
			},
		},
		{
			"insert into t values (coalesce($1, lower($2)), nextval('s'), $3::numeric(10, 2))",
			InsertShape{
				Shape: lexicon.Shape{Prefix: "insert into t values", Tuple: "(coalesce($1, lower($2)), nextval('s'), $3::numeric(10, 2))", Arity: 3, Literals: true},
				Table: "t", Params: []ParamRef{{10, 12, 1}, {20, 22, 2}, {40, 42, 3}}, MaxParam: 3,
			},
		},
	} {
		got, ok := Insert(c.sql)
		if !ok {
			t.Errorf("%s: refused", c.sql)
			continue
		}
		c.want.TupleAt = strings.Index(c.sql, c.want.Tuple)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", c.sql, diff)
		}
	}
}

func TestInsertColumns(t *testing.T) {
	for list, want := range map[string][]string{
		"": nil, "(a)": {"a"}, `(a, B, "C", "d e")`: {"a", "b", "C", "d e"}, "( a /* , x */,\n b )": {"a", "b"}, `("é")`: {"é"},
	} {
		if got, ok := (InsertShape{ColumnList: list}).Columns(); !ok || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", list, got, ok)
		}
	}
	for _, list := range []string{`("a""b")`, "(é)", `(U&"a")`, `(a, u&"\0061")`} {
		if got, ok := (InsertShape{ColumnList: list}).Columns(); ok {
			t.Errorf("%s: taken as %q", list, got)
		}
	}
}

func TestInsertRefuses(t *testing.T) {
	for _, sql := range []string{
		"", "select 1", "insert", "insert into", "insert into t", "insert into t default values",
		"insert into t values", "insert into t values ()", "insert into t values ($1",
		"insert into t values (1), (2)", "insert into t select 1", "insert into t (select 1)", "insert into t (a) (select 1)",
		"insert into t values ((select 1))", "insert into t values ((values (1)))", "insert into t values ((table u))",
		"insert into t values (1) on conflict do nothing", "with a as (select 1) insert into t values (1)",
		"insert into t values (1) returning $1", "insert into t values (1) returning (select 1)", "insert into t values (1) returning",
		"insert into t values (f(1))", "insert into t values (1) returning f(a)", "insert into t values (currval('s'))",
		"insert into t values (1) returning currval('s')", "insert into t values (pg_sleep(1))", "insert into t values (pg_backend_pid())",
		"insert into pg_temp.t values (1)", "insert into t values (set_config('a.b', 'c', false))",
		"insert into t (a[1]) values (1)", "insert into t (a.b) values (1)", "insert into t (a,) values (1)",
		"insert into t values (1); select 1", "select 1; insert into t values (1)", "insert into t values ($0)", "insert into t values ($01)",
		"insert into t values ($65536)", "insert into t values ('open", "insert into t values (1) /* open", "insert into t values (1) x",
		"insert into t values (1;2)", "insert into t x values (1)", "insert into 1 values (1)", "insert into t. values (1)",
		"insert into t overriding all value values (1)", "insert into t values (1))", "explain insert into t values (1)",
	} {
		if got, ok := Insert(sql); ok {
			t.Errorf("%s: taken as %+v", sql, got)
		}
	}
}

func TestAppendTupleKeepsOrderAndLiterals(t *testing.T) {
	for _, c := range []struct {
		sql  string
		base int
		want string
	}{
		{"insert into t values ($1, $2)", 2, "($3, $4)"},
		{"insert into t values ($2, $1)", 2, "($4, $3)"},                                         // defect B3: swapped columns
		{"insert into t values ($1, 7)", 1, "($2, 7)"},                                           // defect B4: dropped literals
		{"insert into t values ($1,$2,'real')", 8, "($9,$10,'real')"},                            // defect B4
		{"insert into t values ($1, 'see /* ttl:5 */ here')", 0, "($1, 'see /* ttl:5 */ here')"}, // defect B7
		{"insert into t values ($1, 'a;b -- c')", 1, "($2, 'a;b -- c')"},                         // defect B14
		{"insert into t values ($9, $10, $1)", 90, "($99, $100, $91)"},
		{
			`insert into t values ('$1', $$ $1 $$, $x$ $1 $x$, E'\'$1', /* $1 */ a$1, "$1", $1 -- $1` + "\n)", 1,
			`('$1', $$ $1 $$, $x$ $1 $x$, E'\'$1', /* $1 */ a$1, "$1", $2 -- $1` + "\n)",
		},
		{"insert into t values ($1::int, $1+$2, -$2)", 2, "($3::int, $3+$4, -$4)"},
		{"insert into t values (1)", 5, "(1)"},
	} {
		shape, ok := Insert(c.sql)
		if !ok {
			t.Errorf("%s: refused", c.sql)
			continue
		}
		if got := string(shape.AppendTuple([]byte("x"), c.base)); got != "x"+c.want {
			t.Errorf("%s + %d\n got %s\nwant %s", c.sql, c.base, got[1:], c.want)
		}
	}
}

func TestShapesThatMayShare(t *testing.T) {
	const base = "insert into t (a, b) values ($1, $2)"
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{base, base, true},
		{base, "/* batch:1 */ " + base + " ;", true},
		{base, "insert into t (a, b) values ($2, $1)", false},
		{base, "insert into t (b, a) values ($1, $2)", false},
		{base, base + " returning a", false},
		{base, "insert into t (a, b) values ($1, 2)", false},
		{base, "insert into t (a, b) values (1, 2)", false},
		{"insert into t values (1, 2)", "insert into t values (3, 'x')", true},
		{"insert into t values (1, 2)", "insert into t values (1)", false},
		{"insert into t values (1)", "insert into u values (1)", false},
	} {
		a, okA := Insert(c.a)
		b, okB := Insert(c.b)
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
