package rowtext

import (
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// TestConstantsBecomeParametersOfTheirColumns: what a row's constants become in a Bind
// message, and which remain text because a parameter might store something else.
func TestConstantsBecomeParametersOfTheirColumns(t *testing.T) {
	const typeText, typeFloat8 = 25, 701
	for _, c := range []struct {
		row   string
		types []uint32
		want  []string // nil: the row stays text; "NULL" is one
	}{
		{"(1)", []uint32{typeInt4}, []string{"1"}},
		{"(-1, 'a', null)", []uint32{typeInt8, typeText, typeText}, []string{"-1", "a", "NULL"}},
		{"( 007 ,\n'it''s ''''' ,\ttrue )", []uint32{typeInt2, typeText, typeBool}, []string{"007", "it's ''", "true"}},
		{"('', '1', 'a,b)', FALSE)", []uint32{typeText, typeInt4, typeText, typeBool}, []string{"", "1", "a,b)", "FALSE"}},
		{"(1.50, 2)", []uint32{typeNumeric, typeNumeric}, []string{"1.50", "2"}},
		{"(1)", []uint32{typeText}, nil},
		{"(1)", []uint32{typeFloat8}, nil},
		{"(1.5)", []uint32{typeInt4}, nil},
		{"(true)", []uint32{typeText}, nil},
		{"(default)", []uint32{typeInt4}, nil},
		{"(1, 2)", []uint32{typeInt4}, nil},
		{"(1)", []uint32{typeInt4, typeInt4}, nil},
		{"(1) ", []uint32{typeInt4}, nil},
		{"(1", []uint32{typeInt4}, nil},
		{"(", []uint32{typeInt4}, nil},
		{"(1 + 1)", []uint32{typeInt4}, nil},
		{"(- 1)", []uint32{typeInt4}, nil},
		{"(1::int)", []uint32{typeInt4}, nil},
		{"(1e5)", []uint32{typeNumeric}, nil},
		{"(1 /* c */)", []uint32{typeInt4}, nil},
		{"(E'x')", []uint32{typeText}, nil},
		{`('\')`, []uint32{typeText}, nil},
		{"('x' 'y')", []uint32{typeText}, nil},
		{"('x)", []uint32{typeText}, nil},
	} {
		got, ok := AppendValues(nil, c.row, c.types)
		if ok != (c.want != nil) {
			t.Errorf("%q of %v: %v", c.row, c.types, ok)
		}
		if !ok {
			continue
		}
		var want pgwire.BindArgs
		for _, v := range c.want {
			want.Values = append(want.Values, []byte(v))
			if v == "NULL" {
				want.Values[len(want.Values)-1] = nil
			}
		}
		// Behind two empty names, no formats and the number of values; no formats of results.
		m := pgwire.AppendBind(nil, "", "", &want)[pgwire.HeaderLen+6:]
		if m = m[:len(m)-2]; !slices.Equal(got, m) {
			t.Errorf("%q: %q, want %q", c.row, got, m)
		}
	}
}

// FuzzAppendValues: values that are taken out of a row are as many as its columns, and
// a row of which they are taken is one that is known again.
func FuzzAppendValues(f *testing.F) {
	for _, row := range []string{"(1, 'a''b')", "(-2.5,NULL)", "( true , '' )", "('", "(", "(1", "(1,", "('''',1)"} {
		f.Add(row)
	}
	f.Fuzz(func(t *testing.T, row string) {
		if row == "" || row[0] != '(' {
			return
		}
		for _, types := range [][]uint32{{typeNumeric, typeInt4}, {typeBool, 25}, {25, typeInt4}} {
			out, ok := AppendValues(nil, row, types)
			if !ok {
				continue
			}
			// The values of a Bind message look like those of a DataRow.
			values, err := pgwire.ParseDataRow(append([]byte{0, byte(len(types))}, out...), nil)
			if err != nil || len(values) != len(types) {
				t.Fatalf("%q: %q is no list of %d values: %v", row, out, len(types), err)
			}
			if _, at, end, ok := Cut(nil, "VALUES "+row); !ok || at != 7 || end != 7+len(row) {
				t.Fatalf("%q is taken, and is no row of constants", row)
			}
		}
	})
}

// TestTypesOfColumnsThatAnInsertNames: the types are those of the columns that it means.
func TestTypesOfColumnsThatAnInsertNames(t *testing.T) {
	long := strings.Repeat("name", 16)
	columns := ReadColumns("6\x011 23 -1 k\x012 1700 -1 n\x013 25 -1 a b\x015 16 -1 K\x016 16384 -1 own\x017 1186 -1 span")
	for sql, want := range map[string][]uint32{
		"INSERT INTO t VALUES (1)":                                        {typeInt4},
		"INSERT INTO t VALUES (1, 2, 'x', true)":                          {typeInt4, typeNumeric, 25, typeBool},
		`INSERT INTO t (N, "K", "a b") VALUES (1, 2, 3)`:                  {typeNumeric, typeBool, 25},
		"INSERT INTO t VALUES (1, 2, 'x', true, 5)":                       nil,
		"INSERT INTO t VALUES (1, 2, 'x', true, 5, 6)":                    nil,
		"INSERT INTO t (own) VALUES (1)":                                  nil,
		"INSERT INTO t (span) VALUES ('5')":                               nil,
		"INSERT INTO t (nope) VALUES (1)":                                 nil,
		"INSERT INTO t (k, n) VALUES (1)":                                 nil,
		"INSERT INTO t (k) VALUES (1) RETURNING *, t.k":                   {typeInt4},
		"INSERT INTO t (k) VALUES (1) RETURNING k + 1":                    nil,
		"INSERT INTO t (k) VALUES (1) RETURNING abs(k)":                   nil,
		"INSERT INTO t (k /* c */) VALUES (1)":                            nil,
		"INSERT INTO é (k) VALUES (1)":                                    nil,
		"INSERT INTO " + long[:63] + " VALUES (1)":                        {typeInt4},
		"INSERT INTO " + long + " VALUES (1)":                             nil,
		`INSERT INTO "` + long + `" VALUES (1)`:                           nil,
		`INSERT INTO "` + long[:63] + `" VALUES (1)`:                      {typeInt4},
		`INSERT INTO "a-b".t (k) VALUES (1)`:                              {typeInt4},
		`INSERT INTO "é" (k) VALUES (1)`:                                  nil,
		"INSERT INTO \"" + long[:40] + `""` + long[:40] + "\" VALUES (1)": nil,
		`INSERT INTO t ("N") VALUES (1)`:                                  nil,
	} {
		ins, ok := sqlscan.Insert(sql)
		if !ok {
			t.Fatal(sql)
		}
		if got := columns.TypesOf(&ins); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", sql, got, want)
		}
	}
	for _, answer := range []string{"", "2\x011 23 -1 k", "1\x011 23 -1 k\x012 25 -1 l", "1\x011 x -1 k", "1\x0123 k", "\x01", "101" + strings.Repeat("\x011 23 -1 k", 101)} {
		if got := ReadColumns(answer); got != nil {
			t.Errorf("%q: %v", answer, got)
		}
	}
}

// BenchmarkConstants is what it costs to make values of a row's constants.
func BenchmarkConstants(b *testing.B) {
	for _, c := range []struct {
		name, row string
		types     []uint32
	}{
		{"numbers", "(123456, 1700000000000)", []uint32{typeInt4, typeInt8}},
		{"texts", "('a name of somebody', 'it''s a note', NULL, 12.50)", []uint32{25, 25, 25, typeNumeric}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			var out []byte
			for b.Loop() {
				var ok bool
				if out, ok = AppendValues(out[:0], c.row, c.types); !ok {
					b.Fatal(c.row)
				}
			}
		})
	}
}
