package sqlscan

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// corpus seeds the fuzz targets.
var corpus = []string{
	"", ";", "select 1", "select 'a''b', E'\\'x', $$ $1 $$, $t$ $$ $t$, \"q\"\"\", U&'x', b'01' from t -- c",
	"select 'a'\n  'b' -- x\n 'c'", "select E'a' -- x\n '\\''", "/* batch:10 /* n */ */ insert into t values ($1, 'x') returning id;",
	"with recursive a (b) as (delete from t returning *) search depth first by b set c select f(1) from a for update",
	"set local time zone interval '1' hour", "reset all", "prepare p(int) as explain execute q(1)", "show weir status",
	"create function f() begin atomic select 1; end; select set_config('a', 'b', true)", "explain (analyze) (select 1)",
	"insert into s.t as x (a, \"b\") overriding user value values ($2, $1::numeric(1,2), array[1], 'é') returning *",
	"select 1 in (1, -2, $3::x), array[1], -1 from (values (1), (2)) v; select 0x1F, 1..2, .5e-3, a.b.c(1)",
	"/*batch='auto',file='a%2F'*/ select $a$", "select '\\", "((((", "))))", "$", "$1$2", "copy t from stdin where f(1)",
	"select /*/ * /*/ */ */ 1 --", "execute \"a\"\"b\"(1)", "values(1),(2),(", "select \xff'\xff'", "declare c cursor with hold for table t",
	"values(),()", "select - - 1", "E'\\", "in(", "array[",
}

func seed(f *testing.F) {
	for _, sql := range corpus {
		f.Add(sql)
	}
}

// within reports whether part is a substring of whole's memory or equal to one.
func within(whole, part string) bool { return strings.Contains(whole, part) }

func FuzzLexerAgainstOracle(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, sql string) {
		if !utf8.ValidString(sql) {
			t.Skip("the oracle's patterns need UTF-8")
		}
		pieces, ok := oracleSplit(sql)
		l := lexer{sql: sql}
		var got, want []string
		for tok := l.next(); tok.kind != tokEOF; tok = l.next() {
			if tok.kind == tokString || tok.kind == tokQuoted {
				got = append(got, sql[tok.start:tok.end])
			}
		}
		if ok == l.broken {
			t.Fatalf("%q: broken %t, oracle complete %t", sql, l.broken, ok)
		}
		if !ok {
			return
		}
		for _, p := range pieces {
			if p.kind == "literal" || p.kind == "quoted" {
				want = append(want, p.text)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%q: literals (-oracle +lexer)\n%s", sql, diff)
		}
	})
}

func FuzzLexerCoversTheText(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, sql string) {
		l := lexer{sql: sql}
		end := 0
		for tok := l.next(); tok.kind != tokEOF; tok = l.next() {
			if tok.start < end || tok.end <= tok.start || tok.end > len(sql) {
				t.Fatalf("%q: token %+v after %d", sql, tok, end)
			}
			end = tok.end
		}
	})
}

// FuzzConform: what Conform returns has the tokens of the text as it is read where
// backslashes escape, and no plain literal with a backslash.
func FuzzConform(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, sql string) {
		kinds := func(l lexer) (kinds []tokenKind) {
			for tok := l.next(); tok.kind != tokEOF; tok = l.next() {
				kinds = append(kinds, tok.kind)
			}
			return kinds
		}
		out := Conform(sql)
		if diff := cmp.Diff(kinds(lexer{sql: sql, escapes: true}), kinds(lexer{sql: out})); diff != "" {
			t.Fatalf("%q becomes %q (-off +on)\n%s", sql, out, diff)
		}
		if Conform(out) != out {
			t.Fatalf("%q becomes %q, and that %q", sql, out, Conform(out))
		}
	})
}

func FuzzScan(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, sql string) {
		s := Scan(sql)
		if diff := cmp.Diff(s, Scan(sql)); diff != "" {
			t.Fatalf("%q: not deterministic\n%s", sql, diff)
		}
		if s.Verb >= verbCount || s.Effects >= effectEnd {
			t.Fatalf("%q: %d %b", sql, s.Verb, s.Effects)
		}
		if (s.Count == 0) != (s.Verb == VerbEmpty) || s.Effects.Has(EffMulti) != (s.Count > 1) {
			t.Fatalf("%q: %v, %d statements, %v", sql, s.Verb, s.Count, s.Effects)
		}
		if !within(sql, s.Set.Value) {
			t.Fatalf("%q: value %q", sql, s.Set.Value)
		}
		if s.Hints.Batch.Window < 0 || s.Hints.Batch.Window > maxWindow || s.Hints.TTL < 0 || s.Hints.TTL > maxTTL {
			t.Fatalf("%q: hints %+v", sql, s.Hints)
		}
		// Text in front of or behind a statement must not change its effects.
		if !s.Effects.Has(EffUnknown) {
			padded := Scan("/* x */ " + sql + "\n;")
			if padded.Verb != s.Verb || padded.Effects != s.Effects || padded.Count != s.Count {
				t.Fatalf("%q: padded %v %v, plain %v %v", sql, padded.Verb, padded.Effects, s.Verb, s.Effects)
			}
			if s.Count > 0 && s.Hints.Line == 0 && Scan(sql+"\n/*line='7'*/").Hints.Line != 7 {
				t.Fatalf("%q: trailing hint lost", sql)
			}
		}
	})
}

// FuzzText: a text that is cut into tokens first reads like one that is not, also
// where another was read before it.
func FuzzText(f *testing.F) {
	for _, sql := range corpus {
		f.Add("select 1 -- x", sql)
		f.Add(sql, "select set_config('a.b', 'c', true), \"set_config\"('d', e, false)")
		f.Add(sql, "insert into t values ('open")
		f.Add("insert into t values ('\\'", sql+" -- c")
	}
	table := map[string]int{"t": 1, "a": 2, "f": 3, "set_config": 4, "q\"": 5}
	f.Fuzz(func(t *testing.T, before, sql string) {
		var text Text
		text.Read(before)
		text.Read(sql)
		if text.String() != sql {
			t.Fatalf("the text is %q, want %q", text.String(), sql)
		}
		type read struct {
			Statement   Statement
			Settings    []Touched
			All         bool
			Fingerprint uint64
			Insert      InsertShape
			Fit         bool
			Names       []string
			Reading     Reading
		}
		var want, got read
		want.Statement, got.Statement = Scan(sql), text.Scan()
		want.Settings, want.All = Settings(sql)
		got.Settings, got.All = text.Settings()
		want.Fingerprint, got.Fingerprint = Fingerprint(sql), text.Fingerprint()
		want.Insert, want.Fit = Insert(sql)
		got.Insert, got.Fit = text.Insert()
		want.Reading = Names(sql, table, func(name string, v int) { want.Names = append(want.Names, fmt.Sprint(name, v)) })
		got.Reading = NamesIn(&text, table, func(name string, v int) { got.Names = append(got.Names, fmt.Sprint(name, v)) })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%q (-lexed +cut)\n%s", sql, diff)
		}
	})
}

func FuzzInsert(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, sql string) {
		s, ok := Insert(sql)
		if !ok {
			return
		}
		if sql[s.TupleAt:s.TupleAt+len(s.Tuple)] != s.Tuple {
			t.Fatalf("%q: no %q at %d", sql, s.Tuple, s.TupleAt)
		}
		for _, part := range []string{s.Table, s.Prefix, s.Tuple, s.Suffix} {
			if !within(sql, part) {
				t.Fatalf("%q: part %q", sql, part)
			}
		}
		if got := string(s.AppendTuple(nil, 0)); got != s.Tuple {
			t.Fatalf("%q: renumbered by nothing: %q, was %q", sql, got, s.Tuple)
		}
		st := Scan(sql)
		if st.Verb != VerbInsert || st.Count != 1 || st.Effects&^insertEffects != 0 {
			t.Fatalf("%q: %v %v", sql, st.Verb, st.Effects)
		}
		// Put together again it has the same shape, and renumbering undoes itself.
		again, ok := Insert(s.Prefix + " " + s.Tuple + s.Suffix)
		if !ok || !s.Compatible(again) || again.ShapeKey() != s.ShapeKey() {
			t.Fatalf("%q: put together again: %+v", sql, again)
		}
		if s.MaxParam+100 > maxParams {
			return
		}
		moved, ok := Insert(s.Prefix + string(s.AppendTuple([]byte(" "), 100)) + s.Suffix)
		if !ok || len(moved.Params) != len(s.Params) || moved.Arity != s.Arity {
			t.Fatalf("%q: moved: %+v", sql, moved)
		}
		if got := string(moved.AppendTuple(nil, -100)); got != s.Tuple {
			t.Fatalf("%q: moved and back: %q", sql, got)
		}
	})
}

func FuzzFingerprint(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, sql string) {
		fp := Fingerprint(sql)
		if fp != Fingerprint(sql) {
			t.Fatalf("%q: not deterministic", sql)
		}
		l := lexer{sql: sql}
		for l.next().kind != tokEOF {
		}
		if !l.broken && Fingerprint("/* x */ "+sql+" \n ;") != fp {
			t.Fatalf("%q: a comment and a semicolon change it", sql)
		}
		long := Normalize(sql, math.MaxInt32)
		if short := Normalize(sql, 20); len(short) > 20 || !utf8.ValidString(short) || !utf8.ValidString(long) {
			t.Fatalf("%q: %q", sql, short)
		}
	})
}
