package postgres

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestQuoting(t *testing.T) {
	for _, c := range [][2]string{
		{Ident("a"), `"a"`},
		{Ident(`a"b`), `"a""b"`},
		{Qualified("s", "t"), `"s"."t"`},
		{Literal("it's"), `'it''s'`},
		{Literal(`a\'b`), ` E'a\\''b'`},
		{Idents([]string{"a", "b"}), `"a", "b"`},
	} {
		if c[0] != c[1] {
			t.Errorf("%s, want %s", c[0], c[1])
		}
	}
	for in, want := range map[string][]string{
		`{}`: nil, `{a}`: {"a"}, `{a,b}`: {"a", "b"}, `{"a,b",NULL,"NULL"}`: {"a,b", "", "NULL"}, `{"q\"\\","{}"}`: {`q"\`, "{}"},
	} {
		if got := ParseArray(in); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}

func TestStatements(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"SELECT 1", "SELECT 1"},
		{"SELECT 1;;\nSELECT 2;\n", "SELECT 1|SELECT 2"},
		{"-- a; comment\nSELECT 1; /* b; /* nested; */ */ SELECT 2;", "SELECT 1|SELECT 2"},
		{"SELECT 'a;''b' ;SELECT \"x;\"\"y\";", `SELECT 'a;''b'|SELECT "x;""y"`},
		{`SELECT E'a\';b'; SELECT 'c\'; SELECT 2`, `SELECT E'a\';b'|SELECT 'c\'|SELECT 2`},
		{`SELECT E'a''\';b'; X`, `SELECT E'a''\';b'|X`},
		{"DO $$ a; $ b; $$; DO $x$ $$; $y$ ; $x$; SELECT $1; SELECT a$b$c;", "DO $$ a; $ b; $$|DO $x$ $$; $y$ ; $x$|SELECT $1|SELECT a$b$c"},
		{"\\restrict abc\nSELECT 1;\n\\unrestrict abc\n", "SELECT 1"},
		{"CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2); X", "CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2)|X"},
		{"SELECT 1 -- tail", "SELECT 1"},
		{"SELECT 5 - -3 / 2;", "SELECT 5 - -3 / 2"},
	} {
		for _, r := range []io.Reader{strings.NewReader(c.in), iotest.OneByteReader(strings.NewReader(c.in))} {
			var got []string
			for s, err := range Statements(r) {
				if err != nil {
					t.Errorf("%q: %v", c.in, err)
				}
				got = append(got, s)
			}
			if s := strings.Join(got, "|"); s != c.want {
				t.Errorf("%q:\n got %q\nwant %q", c.in, s, c.want)
			}
		}
	}
	for _, bad := range []string{"SELECT 'a", `SELECT "a`, "SELECT $$a", "/* a"} {
		var last error
		for _, err := range Statements(strings.NewReader(bad)) {
			last = err
		}
		if !errors.Is(last, io.ErrUnexpectedEOF) {
			t.Errorf("%q: %v", bad, last)
		}
	}
}

func FuzzStatements(f *testing.F) {
	f.Add("SELECT 'a;b'; DO $x$ ; $x$; /* ; */ -- ;\nX")
	f.Add(`E'\';' "a""b;" (;)`)
	f.Fuzz(func(t *testing.T, script string) {
		for s, err := range Statements(strings.NewReader(script)) {
			if err == nil && (s == "" || len(s) > len(script)) {
				t.Errorf("statement %q of %q", s, script)
			}
		}
	})
}

// sumOf sums a stream that is cut into pieces at random places.
func sumOf(t *testing.T, isBinary bool, rnd *rand.Rand, stream []byte) *RowSum {
	t.Helper()
	sum := &RowSum{Binary: isBinary}
	for len(stream) > 0 {
		n := 1 + rnd.IntN(min(len(stream), 1+rnd.IntN(20)))
		if err := sum.Write(stream[:n]); err != nil {
			t.Fatal(err)
		}
		stream = stream[n:]
	}
	if err := sum.End(); err != nil {
		t.Fatal(err)
	}
	return sum
}

func textStream(rows []string) []byte { return []byte(strings.Join(rows, "\n") + "\n") }

func binaryStream(rows []string) []byte {
	b := append(slices.Clone(binarySignature), 0, 0, 0, 0, 0, 0, 0, 3, 'e', 'x', 't')
	for _, r := range rows {
		fields := strings.Split(r, ",")
		b = binary.BigEndian.AppendUint16(b, uint16(len(fields)))
		for _, f := range fields {
			if f == "NULL" {
				b = binary.BigEndian.AppendUint32(b, 0xffffffff)
				continue
			}
			b = append(binary.BigEndian.AppendUint32(b, uint32(len(f))), f...)
		}
	}
	return append(b, 0xff, 0xff)
}

func TestRowSumIgnoresOrderAndNothingElse(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	rows := []string{"a,b", "a,b", "c", "", "NULL,x", "long " + strings.Repeat("y", 100), "1,2,3"}
	for _, c := range []struct {
		name   string
		binary bool
		stream func([]string) []byte
	}{{"text", false, textStream}, {"binary", true, binaryStream}} {
		want := sumOf(t, c.binary, rnd, c.stream(rows))
		if want.Rows() != int64(len(rows)) || !strings.HasPrefix(want.String(), "xxh64-"+c.name+":") {
			t.Errorf("%s: %d rows, %s", c.name, want.Rows(), want)
		}
		for range 20 {
			shuffled := slices.Clone(rows)
			rnd.Shuffle(len(rows), func(a, b int) { shuffled[a], shuffled[b] = shuffled[b], shuffled[a] })
			cut := rnd.IntN(len(rows)-1) + 1
			sum := sumOf(t, c.binary, rnd, c.stream(shuffled[:cut]))
			sum.Add(sumOf(t, c.binary, rnd, c.stream(shuffled[cut:])))
			if sum.String() != want.String() || sum.Rows() != want.Rows() {
				t.Errorf("%s: another order in two parts: %s, want %s", c.name, sum, want)
			}
		}
		for i := range rows {
			changed := slices.Clone(rows)
			changed[i] += "!"
			lost := slices.Delete(slices.Clone(rows), i, i+1)
			for _, other := range [][]string{changed, lost, append(slices.Clone(rows), rows[i])} {
				if got := sumOf(t, c.binary, rnd, c.stream(other)); got.String() == want.String() {
					t.Errorf("%s: %q has the sum of %q", c.name, other, rows)
				}
			}
		}
		whole := c.stream(rows)
		cut := RowSum{Binary: c.binary}
		if err := cut.Write(whole[:len(whole)-1]); err == nil && cut.End() == nil {
			t.Errorf("%s: a stream that is cut short is accepted", c.name)
		}
	}
}

func FuzzRowSumBinary(f *testing.F) {
	f.Add(binaryStream([]string{"a,NULL", "b"}))
	f.Add([]byte("PGCOPY\n\377\r\n\x00"))
	f.Fuzz(func(_ *testing.T, stream []byte) {
		sum := RowSum{Binary: true}
		_ = sum.Write(stream) // whatever it says, it must not panic
		_ = sum.End()
	})
}

// customDump is a table of contents such as pg_dump writes, in a version.
func customDump(minor byte, entries ...Entry) []byte {
	b := []byte{'P', 'G', 'D', 'M', 'P', 1, minor, 0, 4, 8, 1}
	number := func(n int) {
		sign := byte(0)
		if n < 0 {
			sign, n = 1, -n
		}
		b = append(b, sign)
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	text := func(s string) {
		if s == "" {
			number(-1)
			return
		}
		number(len(s))
		b = append(b, s...)
	}
	if minor >= 15 {
		b = append(b, 0)
	} else {
		number(0)
	}
	for range 7 {
		number(5)
	}
	for _, s := range []string{"shop", "15.1", "15.2"} {
		text(s)
	}
	number(len(entries))
	for _, e := range entries {
		number(e.ID)
		number(0)
		for _, s := range []string{"1259", "16384", e.Tag, e.Desc} {
			text(s)
		}
		number(map[Section]int{"": 1, PreData: 2, PostData: 4}[e.Section])
		for _, s := range []string{e.Create, e.Drop, "", e.Namespace, e.Tablespace} {
			text(s)
		}
		if minor >= 14 {
			text(e.AccessMethod)
		}
		if minor >= 16 {
			kind := 'r'
			if strings.Contains(e.Create, "PARTITION BY") {
				kind = 'p'
			}
			number(int(kind))
		}
		text(e.Owner)
		text("false")
		for _, id := range e.Depends {
			text(string(rune('0' + id)))
		}
		number(-1)
		b = append(b, make([]byte, 9)...)
	}
	return b
}

func TestTOCOfAllVersions(t *testing.T) {
	entries := []Entry{
		{ID: 1, Desc: "TABLE", Tag: "t", Namespace: "s", Owner: "o", Section: PreData, Create: "CREATE TABLE s.t ();\n", Drop: "DROP TABLE s.t;\n"},
		{ID: 2, Desc: "COMMENT", Tag: "TABLE t", Namespace: "s", Owner: "o", Create: "COMMENT ON TABLE s.t IS 'x';\n", Depends: []int{1}},
		{ID: 3, Desc: "INDEX", Tag: "i", Namespace: "s", Owner: "o", Section: PostData, Create: "CREATE INDEX i ON s.t (a);\n", Tablespace: "fast", Depends: []int{1, 2}},
		{ID: 4, Desc: "COMMENT", Tag: "INDEX i", Section: "", Create: "COMMENT ON INDEX s.i IS 'x';\n"},
	}
	for minor := byte(12); minor <= 16; minor++ {
		toc, err := ReadTOC(bytes.NewReader(customDump(minor, entries...)))
		if err != nil {
			t.Errorf("1.%d: %v", minor, err)
			continue
		}
		if toc.Database != "shop" || toc.Server != "15.1" || len(toc.Entries) != 4 {
			t.Fatalf("1.%d: %+v", minor, toc)
		}
		if e := toc.Entries[1]; e.Section != PreData || !slices.Equal(e.Depends, []int{1}) {
			t.Errorf("1.%d: a comment on a table: %+v", minor, e)
		}
		if e := toc.Entries[2]; e.Tablespace != "fast" || e.Name() != "INDEX s.i" || e.Exclusive() {
			t.Errorf("1.%d: an index: %+v", minor, e)
		}
		if e := toc.Entries[3]; e.Section != PostData {
			t.Errorf("1.%d: a comment on an index: %+v", minor, e)
		}
	}
	root := Entry{ID: 1, Desc: "TABLE", Tag: "p", Namespace: "s", Section: PreData, Create: "CREATE TABLE s.p (a integer)\nPARTITION BY LIST (a);\n", AccessMethod: "heap"}
	toc, err := ReadTOC(bytes.NewReader(customDump(16, root)))
	if err != nil {
		t.Fatal(err)
	}
	if e := toc.Entries[0]; e.AccessMethod != "" || !strings.HasSuffix(e.Create, ";\nALTER TABLE \"s\".\"p\" SET ACCESS METHOD \"heap\";\n") {
		t.Errorf("the access method of a partitioned table: %+v", e)
	}
	whole := customDump(14, entries...)
	for n := range whole {
		if _, err := ReadTOC(bytes.NewReader(whole[:n])); !errors.Is(err, ErrTOC) {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
	}
	if _, err := ReadTOC(bytes.NewReader(customDump(17))); !errors.Is(err, ErrTOC) || !strings.Contains(err.Error(), "1.17") {
		t.Errorf("a version to come: %v", err)
	}
}

func FuzzReadTOC(f *testing.F) {
	f.Add(customDump(14, Entry{ID: 1, Desc: "TABLE", Tag: "t", Section: PreData, Depends: []int{2}}))
	f.Add(customDump(16, Entry{ID: 1, Desc: "INDEX", Tag: "t", Section: PostData}))
	f.Fuzz(func(t *testing.T, dump []byte) {
		toc, err := ReadTOC(bytes.NewReader(dump))
		if err != nil && !errors.Is(err, ErrTOC) {
			t.Errorf("error: %v", err)
		}
		if err == nil {
			for _, e := range toc.Entries {
				_, _, _ = e.OwnerSQL(), e.Pass(), e.Name()
			}
		}
	})
}

func TestOwners(t *testing.T) {
	for _, c := range []struct {
		e    Entry
		want string
	}{
		{Entry{Desc: "VIEW", Tag: "v", Namespace: "s", Owner: "o", Drop: "x"}, `ALTER TABLE "s"."v" OWNER TO "o"`},
		{Entry{Desc: "SCHEMA", Tag: "s", Owner: "o", Drop: "x"}, `ALTER SCHEMA "s" OWNER TO "o"`},
		{Entry{Desc: "FUNCTION", Tag: "f(integer)", Namespace: "s", Owner: "o", Drop: "DROP FUNCTION s.f(a integer);\n"}, `ALTER FUNCTION s.f(a integer) OWNER TO "o"`},
		{Entry{Desc: "INDEX", Tag: "i", Namespace: "s", Owner: "o", Drop: "x"}, ""},
		{Entry{Desc: "TABLE", Tag: "t", Namespace: "s", Drop: "x"}, ""},
	} {
		if got := c.e.OwnerSQL(); got != c.want {
			t.Errorf("%s: %s, want %s", c.e.Name(), got, c.want)
		}
	}
}

// fakeTool makes a program that says that it is pg_dump of a version.
func fakeTool(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	script := "#!/bin/sh\necho 'pg_dump (PostgreSQL) " + version + "'\n"
	if err := os.WriteFile(filepath.Join(dir, "pg_dump_test"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestFindTool(t *testing.T) {
	old, same, newer := fakeTool(t, "14.3 (Debian)"), fakeTool(t, "15.18"), fakeTool(t, "18beta1")
	const name = "pg_dump_test" // which no distribution has
	check := func(bin, path string, server int, want string) {
		t.Helper()
		t.Setenv(EnvBin, bin)
		t.Setenv("PATH", path+":/usr/bin:/bin")
		tool, err := FindTool(t.Context(), name, server)
		if want == "" {
			var missing *ToolError
			if !errors.As(err, &missing) || !strings.Contains(err.Error(), "postgresql-client-") {
				t.Errorf("with %q and %q for %d: %+v, %v", bin, path, server, tool, err)
			}
			return
		}
		if err != nil || filepath.Dir(tool.Path) != want {
			t.Errorf("with %q and %q for %d: %+v, %v", bin, path, server, tool, err)
		}
	}
	check("", same, 150018, same)
	check(newer, same, 150018, newer)
	check(old, same, 150018, same)
	check("", old, 150018, "")
	check(old, "/nowhere", 150018, "")
	check("", "/nowhere", 150018, "")
}

// TestToolFailureSaysItsNameOnce, as the program says it, too.
func TestToolFailureSaysItsNameOnce(t *testing.T) {
	for _, c := range []struct{ stderr, want string }{
		{"pg_dump: error: no matching tables were found", "pg_dump: error: no matching tables were found"},
		{"Segmentation fault", "pg_dump: Segmentation fault"},
		{"", "pg_dump: exit status 1"},
	} {
		if got := (&ToolFailure{"pg_dump", c.stderr, errors.New("exit status 1")}).Error(); got != c.want {
			t.Errorf("of %q it makes %q, want %q", c.stderr, got, c.want)
		}
	}
}

func TestEnvironmentHoldsTheDSN(t *testing.T) {
	t.Setenv("PGHOST", "elsewhere")
	t.Setenv("PGOPTIONS", "-c a=b")
	t.Setenv("LANGUAGE", "de")
	for _, dsn := range []string{
		"postgres://me:p%40ss%20w@db.example:5433/shop?sslmode=require&sslrootcert=/ca",
		"host=db.example port=5433 user=me password='p@ss w' dbname=shop sslmode=require sslrootcert=/ca",
	} {
		env, err := Environment(dsn, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"PGHOST=db.example", "PGPORT=5433", "PGUSER=me", "PGPASSWORD=p@ss w", "PGDATABASE=shop", "PGSSLMODE=require", "PGSSLROOTCERT=/ca", "PGOPTIONS=-c a=b " + toolOptions, "LC_ALL=C"} {
			if !slices.Contains(env, want) {
				t.Errorf("%s: %s is missing", dsn, want)
			}
		}
		if slices.Contains(env, "PGHOST=elsewhere") || slices.Contains(env, "LANGUAGE=de") {
			t.Errorf("%s: what it replaces is still there", dsn)
		}
		if env, err = Environment(dsn, "a=b"); err != nil || !slices.Contains(env, "PGDATABASE=a=b") {
			t.Errorf("%s: another database: %v", dsn, err)
		}
	}
	if _, err := Environment("postgres://me:secret%zz@h/", ""); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a broken URL: %v", err)
	}
}

// TestHalfAStatementIsNone: what a reader yields before it fails may be a statement
// cut short, which is not to be run.
func TestHalfAStatementIsNone(t *testing.T) {
	t.Parallel()
	broken := errors.New("the chunk is damaged")
	var got []string
	var failed error
	for sql, err := range Statements(io.MultiReader(strings.NewReader("SELECT 1;\nCREATE ROLE bob"), iotest.ErrReader(broken))) {
		if err != nil {
			failed = err
			continue
		}
		got = append(got, sql)
	}
	if !slices.Equal(got, []string{"SELECT 1"}) || !errors.Is(failed, broken) {
		t.Errorf("%q, %v", got, failed)
	}
}

// TestDifferencesShowNoSecrets: options of a foreign server may hold a password.
func TestDifferencesShowNoSecrets(t *testing.T) {
	t.Parallel()
	want := &Aspect{Kind: "server", Name: "far", Text: "w; Password=S3CRET,host=h"}
	got := &Aspect{Kind: "server", Name: "far", Text: "w; connstr=host=h password=S3CRET,port=1"}
	for _, d := range []Difference{{Want: want}, {Got: got}, {Want: want, Got: got}} {
		if s := d.String(); strings.Contains(s, "S3CRET") || d.Want != nil && !strings.Contains(s, "host=h") {
			t.Errorf("%s", s)
		}
	}
}

// ReadTOC reads the table of contents of a dump in pg_dump's custom format. It
// leaves out what belongs to no section that holds definitions.
func ReadTOC(r io.Reader) (*TOC, error) {
	var all []Entry
	toc, err := ConvertTOC(r, io.Discard, func(e *Entry) error {
		all = append(all, *e)
		return nil
	})
	if err != nil {
		return nil, err
	}
	toc.Entries = all
	return toc, nil
}
