package mysql

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestTextRoundTrip(t *testing.T) {
	rows := [][][]byte{
		{nil, {}, []byte("N"), []byte(`\N`), []byte("a\tb\nc\x00d\\e\r\x1a")},
		{[]byte(`\`), []byte("\t"), []byte("\n"), []byte("\\\t\\"), nil},
	}
	for _, row := range rows {
		line := AppendText(nil, row)
		if bytes.Count(line, []byte("\n")) != 1 {
			t.Errorf("%q is not one line", line)
		}
		got, err := ParseText(line[:len(line)-1], len(row), nil)
		if err != nil || !slices.EqualFunc(got, row, func(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }) {
			t.Errorf("%q became %q, %v", row, got, err)
		}
	}
	if got := string(AppendText(nil, [][]byte{[]byte("x\ty"), nil})); got != "x\\ty\t\\N\n" {
		t.Errorf("%q", got)
	}
}

// FuzzParseText looks for lines that are taken for rows and are not what those rows
// would be written as, but for \N and the empty value being told apart.
func FuzzParseText(f *testing.F) {
	f.Add([]byte("a\tb"), 2)
	f.Add([]byte(`\N`+"\t"+`x\\\t\n\0`), 2)
	f.Add([]byte(`\`), 1)
	f.Fuzz(func(t *testing.T, line []byte, n int) {
		if n < 1 || n > 100 || bytes.ContainsAny(line, "\n\x00") {
			return
		}
		row, err := ParseText(bytes.Clone(line), n, nil)
		if err != nil {
			if !errors.Is(err, ErrText) {
				t.Fatal(err)
			}
			return
		}
		if got := AppendText(nil, row); string(got) != string(line)+"\n" {
			t.Fatalf("%q is written as %q", line, got)
		}
	})
}

func TestInserterCutsStatements(t *testing.T) {
	l, err := NewLayout([]string{"a", "b"}, "db")
	if err != nil {
		t.Fatal(err)
	}
	ins := NewInserter(l, "`t`", 65)
	var got []string
	rows := 0
	for _, line := range []string{"it's\t1", `\N` + "\t2", `x\0` + "\t" + `\N`} {
		sql, n, err := ins.Line([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		if rows += n; n > 0 {
			got = append(got, string(sql))
		}
	}
	sql, n := ins.Rest()
	got = append(got, string(sql))
	want := []string{"INSERT INTO `t` (`a`, `b`) VALUES (_binary'it\\'s',1),(NULL,2)", "INSERT INTO `t` (`a`, `b`) VALUES (_binary'x\\0',NULL)"}
	if rows+n != 3 || !slices.Equal(got, want) {
		t.Errorf("%d rows in %q", rows+n, got)
	}
}

func TestLines(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	var got []string
	err := Lines(strings.NewReader("a\n\n"+long+"\nb\n"), func(line []byte) error {
		got = append(got, string(line))
		return nil
	})
	if err != nil || !slices.Equal(got, []string{"a", "", long, "b"}) {
		t.Errorf("%d lines, %v", len(got), err)
	}
	if err := Lines(strings.NewReader("a\nb"), func([]byte) error { return nil }); !errors.Is(err, ErrText) {
		t.Errorf("a line without an end: %v", err)
	}
	if err := Lines(io.MultiReader(strings.NewReader("a\n"), broken{}), func([]byte) error { return nil }); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a reader that breaks: %v", err)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestRowSumKnowsNoOrder(t *testing.T) {
	var a, b, c RowSum
	for _, l := range []string{"1\n", "2\n", "2\n"} {
		a.Line([]byte(l))
	}
	b.Line([]byte("2\n"))
	c.Line([]byte("2\n"))
	c.Line([]byte("1\n"))
	b.Add(c)
	if a.String() != b.String() || a.Rows() != 3 || b.Rows() != 3 {
		t.Errorf("%s with %d rows, %s with %d", a.String(), a.Rows(), b.String(), b.Rows())
	}
	b.Line([]byte("3\n"))
	if a.String() == b.String() {
		t.Error("another row does not change the sum")
	}
}

// TestFormsOfEnums has numbers for members whose texts do not say which one is meant.
func TestFormsOfEnums(t *testing.T) {
	for columnType, want := range map[string]Form{
		"enum('a','b')": Direct, "set('x','yz','w')": Direct, "enum('2','1','0')": Direct, "enum('a b','a, b')": Direct,
		"enum('','a')": Bits, "set('','a')": Bits, "enum('a',' ')": Bits, "enum('a','A')": Bits, "enum('v','w')": Bits, "enum('a','a ')": Bits,
		"enum('it''s')": Bits, "enum('ä','b')": Bits, `enum('\\','b')`: Bits, "enum": Bits, "enum('a','b": Bits,
	} {
		kind, _, _ := strings.Cut(columnType, "(")
		if got := FormOf(kind, columnType); got != want {
			t.Errorf("%s: %c instead of %c", columnType, got, want)
		}
	}
	if FormOf("varchar", "varchar(5)") != Direct || FormOf("bit", "bit(1)") != Bits {
		t.Error("other types")
	}
}

// TestEscaped compares values of all lengths, with each byte at each place, with what
// one byte after the other says.
func TestEscaped(t *testing.T) {
	slow := func(v []byte) (out []byte) {
		for _, c := range v {
			if e := escapes[c]; e != 0 {
				out = append(out, '\\', e)
			} else {
				out = append(out, c)
			}
		}
		return out
	}
	for n := range 20 {
		for at := range n {
			for c := range 256 {
				for _, others := range []byte{'x', 0x80, 1, '\t'} {
					v := bytes.Repeat([]byte{others}, n)
					v[at] = byte(c)
					if got, want := appendEscaped(nil, v), slow(v); !bytes.Equal(got, want) {
						t.Fatalf("%q: %q instead of %q", v, got, want)
					}
				}
			}
		}
	}
}

// TestGlobalsKeepLines: a line's end in a name or a text is none of the script.
func TestGlobalsKeepLines(t *testing.T) {
	for _, g := range []Globals{
		{},
		{Accounts: []Account{{Name: "'a'@'%'", Statements: []string{"CREATE USER 'a'@'%'", "GRANT SELECT ON `x;\n-- account y`.* TO a", "GRANT y TO a"}}, {Name: "b", Statements: []string{"CREATE ROLE 'b'"}}}},
		{Accounts: []Account{{Name: "c", Statements: []string{"CREATE ROLE 'c\n;\n\n-- lines of the next statement: 7\n'", "x"}}}},
	} {
		if got := ParseGlobals(g.String()); !reflect.DeepEqual(got, g) {
			t.Errorf("%q\n%q\nof %s", got, g, g)
		}
	}
}
