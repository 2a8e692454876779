package myscan

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

// corpus seeds the fuzz targets.
var corpus = []string{
	"", ";", "select 1", "select 'a''b\\'c', \"d\"\"e\", `f``g`, n'h', x'4a', b'01', _utf8'i' from t -- c", "select 1 # x\n, 2 --\t3\n--4",
	"/* batch:10 */ insert into d.`t` (a, `b`) values (?, 'x', -1.5e3, now(), null) returning id;", "insert t value()", "/*batch='auto',file='a%2F'*/ select 1",
	"with recursive a (b) as (select 1) cycle b restrict select f(1) from a for update", "set names utf8 collate x, @a := 1, @@global.b = 2, session c = -3, d.e = 'f\\n'",
	"set session transaction isolation level read committed, read only", "set statement a = 1 for select @x", "kill query 5", "/*!40101 set @a=@@b */", "select /*M!100100 1 */, /*!50700 2",
	"create procedure p() begin if (1) then select case when 1 then 2 end; end if; end; select 1", "begin not atomic select 1; end", "select @, @`a`, @'b', @\"c\", @@`d`, @@e.f, @g.h:=1",
	"select t.1e5, 1e5x, 1e, 0x1F, 0x, 0b1, 0b2, 1.5.6, .5e-3, 1.e, a .b, `c`.d, \\N, ?a, ?", "((((", "))))", "select /*/ * /* */ 1 /*!99999 /* x */ */", "select '\\", "values(1),(2),(",
	"load data local infile 'x' into table t (a, @b) set c = @b", "explain for connection 5", "show variables like 'x'", "use `a``b`", "select \x00", "x'1'", "select 1 in (1, -2, ?)", "create table t select f(1)",
	"call p(@a)", "get diagnostics @a = number", "execute immediate 'x'", "select last_insert_id(1), count (*), d.f(1)", "select a/*!*/b", "lock tables t read", "drop temporary table t", "\xa0select\xa01",
}

// modeOf makes a Mode of arbitrary bits.
func modeOf(bits uint16) Mode {
	m := Mode{AnsiQuotes: bits&1 != 0, NoBackslashEscapes: bits&2 != 0, Multi: bits&4 != 0, MariaDB: bits&8 != 0, Charset: Charset(bits >> 6 & 3 % 3)}
	m.Version = [...]uint32{0, 50744, 90704, 101119}[bits>>4&3]
	return m
}

func seed(f *testing.F) {
	for i, sql := range corpus {
		f.Add(sql, uint16(0))
		f.Add(sql, uint16(i*7))
	}
}

func FuzzLexerAgainstOracle(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, sql string, bits uint16) {
		if !utf8.ValidString(sql) {
			t.Skip("the oracle's patterns need UTF-8")
		}
		mode := modeOf(bits)
		mode.Version, mode.Charset = 0, CharsetUTF8
		pieces, ok := oracleSplit(sql, mode)
		l := newLexer(sql, mode)
		var got []piece
		for tok := l.next(); tok.kind != tokEOF; tok = l.next() {
			got = append(got, piece{tok.kind, sql[tok.start:tok.end]})
		}
		if ok == l.broken {
			t.Fatalf("%q %+v: broken %t, oracle complete %t\n%q", sql, mode, l.broken, ok, pieces)
		}
		if !ok {
			return
		}
		if diff := cmp.Diff(pieces, got, cmp.AllowUnexported(piece{})); diff != "" {
			t.Fatalf("%q %+v: tokens (-oracle +lexer)\n%s", sql, mode, diff)
		}
	})
}

func FuzzLexerCoversTheText(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, sql string, bits uint16) {
		l := newLexer(sql, modeOf(bits))
		end := int32(0)
		for tok := l.next(); tok.kind != tokEOF; tok = l.next() {
			if tok.start < end || tok.end <= tok.start || int(tok.end) > len(sql) {
				t.Fatalf("%q: token %+v after %d", sql, tok, end)
			}
			end = tok.end
		}
	})
}

// comparable ignores what Scan keeps for SetList.
var comparable = cmpopts.IgnoreUnexported(SetList{})

func FuzzScan(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, sql string, bits uint16) {
		mode := modeOf(bits)
		s := Scan(sql, mode)
		if diff := cmp.Diff(s, Scan(sql, mode), comparable); diff != "" {
			t.Fatalf("%q: not deterministic\n%s", sql, diff)
		}
		if s.Verb >= verbCount || s.Effects >= effectEnd {
			t.Fatalf("%q: %d %b", sql, s.Verb, s.Effects)
		}
		if s.Effects.Has(EffMulti) != (s.Count > 1) || s.Verb != VerbEmpty && s.Count == 0 || !mode.Multi && s.Count > 1 {
			t.Fatalf("%q: %v, %d statements, %v", sql, s.Verb, s.Count, s.Effects)
		}
		if k := s.Kill; k.ID != 0 && !strings.HasSuffix("0000000000000000000000000"+sql[k.Start:k.End], uintText(k.ID)) {
			t.Fatalf("%q: kill %+v", sql, k)
		}
		unread := false
		for a := range s.Set.All() {
			if !strings.Contains(sql, a.Value) && !strings.HasPrefix(a.Name, "transaction_") || !strings.Contains(sql, a.Collate) {
				t.Fatalf("%q: %+v", sql, a)
			}
			if text, ok := a.Text(mode); ok && a.Kind == ValueExpr || len(text) > len(a.Value) {
				t.Fatalf("%q: %+v is %q", sql, a, text)
			}
			unread = unread || a.Name == ""
		}
		if unread && !s.Effects.Has(EffSetUnknown|EffUnknown) {
			t.Fatalf("%q: %v", sql, s.Effects)
		}
		// Text in front of or behind a statement must not change its effects.
		if !s.Effects.Has(EffUnknown) && s.Verb != VerbEmpty {
			padded := Scan("/* x */ "+sql+"\n;", mode)
			if padded.Verb != s.Verb || padded.Effects&^EffMulti != s.Effects&^EffMulti && !padded.Effects.Has(EffUnknown) {
				t.Fatalf("%q: padded %v %v, plain %v %v", sql, padded.Verb, padded.Effects, s.Verb, s.Effects)
			}
			if s.Hints.Line == 0 && Scan(sql+"\n/*line='7'*/", mode).Hints.Line != 7 {
				t.Fatalf("%q: trailing hint lost", sql)
			}
		}
	})
}

func uintText(n uint64) string {
	b := []byte{byte('0' + n%10)}
	for n /= 10; n > 0; n /= 10 {
		b = append(b, byte('0'+n%10))
	}
	slices.Reverse(b)
	return string(b)
}

// FuzzText holds what is read of a text that was cut into tokens against what is read
// of it by the lexer.
func FuzzText(f *testing.F) {
	for i, sql := range corpus {
		f.Add("select 1; select /*! 2 */", sql, uint16(0))
		f.Add(sql, "insert into t values ('open", uint16(i*7))
		f.Add("set @a = 1, b = (select 2)", sql+" -- c", uint16(4))
	}
	f.Fuzz(func(t *testing.T, before, sql string, bits uint16) {
		mode := modeOf(bits)
		var text Text
		text.Read(before, Mode{})
		text.Read(sql, mode)
		if !text.Is(sql, mode) || text.String() != sql {
			t.Fatalf("the text is %q, want %q", text.String(), sql)
		}
		type read struct {
			Statement     Statement
			Set           []Assignment
			Fingerprint   uint64
			Insert        InsertShape
			Fit           bool
			Schema, Table string
			One           bool
			Names         []string
		}
		var want, got read
		want.Statement, got.Statement = Scan(sql, mode), text.Scan()
		want.Set, got.Set = slices.Collect(want.Statement.Set.All()), slices.Collect(got.Statement.Set.All())
		want.Fingerprint, got.Fingerprint = Fingerprint(sql, mode), text.Fingerprint()
		want.Insert, want.Fit = Insert(sql, mode)
		got.Insert, got.Fit = text.Insert()
		want.Schema, want.Table, want.One = Target(sql, mode)
		got.Schema, got.Table, got.One = text.Target()
		Names(sql, mode, func(name string, call bool) bool {
			want.Names = append(want.Names, fmt.Sprint(name, call))
			return true
		})
		text.Names(func(name string, call bool) bool {
			got.Names = append(got.Names, fmt.Sprint(name, call))
			return true
		})
		if diff := cmp.Diff(want, got, comparable, cmp.AllowUnexported(InsertShape{})); diff != "" {
			t.Fatalf("%q %+v (-lexed +cut)\n%s", sql, mode, diff)
		}
	})
}

func FuzzInsert(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, sql string, bits uint16) {
		mode := modeOf(bits)
		s, ok := Insert(sql, mode)
		if !ok {
			return
		}
		if sql[s.TupleAt:s.TupleAt+len(s.Tuple)] != s.Tuple {
			t.Fatalf("%q: no %q at %d", sql, s.Tuple, s.TupleAt)
		}
		for _, part := range []string{s.Target, s.Prefix, s.Tuple, s.Suffix, s.ColumnList} {
			if !strings.Contains(sql, part) {
				t.Fatalf("%q: part %q", sql, part)
			}
		}
		st := Scan(sql, mode)
		if st.Verb != VerbInsert || st.Count > 2 || st.Effects&^(EffMulti|EffStatementSet) != EffWrites {
			t.Fatalf("%q: %v %d %v", sql, st.Verb, st.Count, st.Effects)
		}
		// Put together again it has the same shape.
		again, ok := Insert(string(s.AppendMulti(nil, 1)), mode)
		if !ok || !s.Compatible(again) || again.ShapeKey() != s.ShapeKey() || again.Params != s.Params || again.Table != s.Table {
			t.Fatalf("%q: put together again: %+v", sql, again)
		}
		// Of two rows it is no longer one of a single row, but still one statement.
		twice := Scan(string(s.AppendMulti(nil, 2)), mode)
		if twice.Verb != VerbInsert || twice.Count != 1 || twice.Effects&^EffStatementSet != EffWrites {
			t.Fatalf("%q: twice: %v %v", sql, twice.Verb, twice.Effects)
		}
	})
}

func FuzzFingerprint(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, sql string, bits uint16) {
		mode := modeOf(bits)
		fp := Fingerprint(sql, mode)
		if fp != Fingerprint(sql, mode) {
			t.Fatalf("%q: not deterministic", sql)
		}
		l := newLexer(sql, mode)
		for l.next().kind != tokEOF {
		}
		if !l.broken && Fingerprint("/* x */ "+sql+" \n ;", mode) != fp {
			t.Fatalf("%q: a comment and a semicolon change it", sql)
		}
		long := Normalize(sql, mode, math.MaxInt32)
		if short := Normalize(sql, mode, 20); len(short) > 20 || !utf8.ValidString(short) || !utf8.ValidString(long) {
			t.Fatalf("%q: %q", sql, short)
		}
	})
}

// FuzzUnquote holds the decoding of literals against the lexer: what is quoted
// again is read as the same.
func FuzzUnquote(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, text string, bits uint16) {
		mode := modeOf(bits)
		quoted := "'" + strings.ReplaceAll(text, "'", "''") + "'"
		if !mode.NoBackslashEscapes {
			quoted = "'" + strings.NewReplacer("'", "''", `\`, `\\`).Replace(text) + "'"
		}
		if got, ok := unquoteString(quoted, mode); !ok || got != text {
			t.Fatalf("%q: %q", text, got)
		}
		if got := unquote("`" + strings.ReplaceAll(text, "`", "``") + "`"); got != text {
			t.Fatalf("%q: %q", text, got)
		}
		if lower := lexicon.Lower(text); len(lower) != len(text) || lexicon.Lower(lower) != lower {
			t.Fatalf("%q: %q", text, lower)
		}
	})
}

// Fingerprint returns the 64-bit FNV-1a hash of what Normalize returns uncut,
// so texts that differ only in literals, lengths of lists, white space, comments
// and the case of words share it. Other texts may share it by chance or
// by a client's intent: it is for statistics, never for deciding what runs.
func Fingerprint(sql string, mode Mode) uint64 { return fingerprint(newLexer(sql, mode)) }

// Names calls yield with each identifier of a text, in lower case and without
// quotes: names of tables, views and routines are among them, and so may be
// anything else. call says that the name stands where a routine is called. It stops
// when yield returns false.
func Names(sql string, mode Mode, yield func(name string, call bool) bool) {
	names(newLexer(sql, mode), yield)
}
