package backupbench

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weirdb/weir/internal/backup/archive"
	backupdata "github.com/weirdb/weir/internal/ruler/bench/backup/data"
	"github.com/weirdb/weir/internal/testkit"
)

func TestPlansNameWhatIsThere(t *testing.T) {
	for name := range Plans(1) {
		plan := Plans(DefaultSize(name))[name]
		for _, s := range plan.Shapes {
			if _, err := backupdata.ByName(s.Shape); err != nil || s.Bytes < 1 {
				t.Errorf("%s: %+v, %v", name, s, err)
			}
		}
		for _, s := range plan.Compress {
			if _, err := backupdata.ByName(s); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, m := range plan.Methods {
			if _, err := archive.ParseCompression(m); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if plan.Rounds < 1 || plan.MicroRounds < 1 || plan.MicroDuration <= 0 {
			t.Errorf("%s measures nothing: %+v", name, plan)
		}
	}
}

func TestParseVersion(t *testing.T) {
	for said, want := range map[string]program{
		"pg_dump (PostgreSQL) 15.20 (Debian 15.20-0+deb12u1)\n":                          {"p", "15.20", 15},
		"pg_dump (PostgreSQL) 18beta1\n":                                                 {"p", "18", 18},
		"mydumper 0.10.0, built against MySQL 10.11.14\n":                                {"p", "0.10.0", 0},
		"mydumper v1.0.3-1, built against MariaDB 10.11.14\n":                            {"p", "1.0.3", 1},
		"mysqldump  Ver 10.19 Distrib 10.11.14-MariaDB, for debian-linux-gnu (x86_64)\n": {"p", "10.11.14", 10},
		"mariadb-dump from 11.8.3-MariaDB, client 10.19 for debian-linux-gnu (x86_64)\n": {"p", "11.8.3", 11},
		"something else": {},
		"":               {},
	} {
		if got, ok := parseVersion("p", said); got != want && ok || ok != (want.version != "") {
			t.Errorf("%q is %+v, %v; want %+v", said, got, ok, want)
		}
	}
}

func FuzzParseVersion(f *testing.F) {
	f.Add("pg_dump (PostgreSQL) 15.20 (Debian 15.20-0+deb12u1)")
	f.Add("mysqldump  Ver 10.19 Distrib 10.11.14-MariaDB")
	f.Add("99999999999999999999999.1")
	f.Fuzz(func(t *testing.T, said string) {
		if p, ok := parseVersion("p", said); ok && (p.version == "" || p.major < 0) {
			t.Errorf("%q is version %+v", said, p)
		}
	})
}

func TestSumsDiffer(t *testing.T) {
	whole := sums{tables: map[string]string{"a": "1 rows, sum 5", "b": "2 rows, sum 6"}, objects: "3 indexes"}
	for want, got := range map[string]sums{
		"":                   whole,
		"table b is missing": {tables: map[string]string{"a": "1 rows, sum 5"}, objects: "3 indexes"},
		"table b has 2 rows, sum 7, not 2 rows, sum 6": {tables: map[string]string{"a": "1 rows, sum 5", "b": "2 rows, sum 7"}, objects: "3 indexes"},
		"table c is unexpected":                        {tables: map[string]string{"a": "1 rows, sum 5", "b": "2 rows, sum 6", "c": "0 rows"}, objects: "3 indexes"},
		"it has 2 indexes, not 3 indexes":              {tables: whole.tables, objects: "2 indexes"},
	} {
		if d := whole.differs(got); d != want {
			t.Errorf("said %q, want %q", d, want)
		}
	}
	many := sums{tables: make(map[string]string)}
	for _, name := range strings.Split("a b c d e f g h", " ") {
		many.tables[name] = "1 rows"
	}
	if d := many.differs(sums{}); !strings.HasSuffix(d, "; and 3 more") {
		t.Errorf("of eight missing tables it said %q", d)
	}
}

func TestPasswordsAreNotInArguments(t *testing.T) {
	for _, dsn := range []string{"postgres://app:secret@db:5433/x?sslmode=disable", "mysql://app:secret@db:3307/x"} {
		p, password, err := withoutPassword(dsn, "shop")
		if err != nil {
			t.Fatal(err)
		}
		if password != "secret" || strings.Contains(p.dsn, "secret") || p.database != "shop" || !strings.Contains(p.dsn, "/shop") || p.user != "app" || p.host != "db" {
			t.Errorf("%s is %+v", dsn, p)
		}
	}
	for _, s := range []engine{&postgresServer{base: base{dsn: "postgres://app:secret@db:5433/x"}}, &mysqlServer{base: base{dsn: "mysql://app:secret@db:3307/x"}}} {
		p := s.place("shop")
		if !p.secret {
			t.Errorf("%T does not know that it has a password", s)
		}
		ways, _ := s.ways(t.Context(), &Options{Binary: "weir", Plan: Plan{Slow: true}}, 2)
		for _, w := range ways {
			all := []pipeline{w.dump(p, "/dir")}
			if w.restore != nil {
				all = append(all, w.restore(p, "/dir"))
			}
			for _, one := range all {
				if strings.Contains(one.String(), "secret") {
					t.Errorf("%s shows the password: %s", w.name, one)
				}
			}
		}
	}
	if _, _, err := withoutPassword("host=db user=app", ""); err == nil {
		t.Error("a DSN that is no URL was taken")
	}
}

// Sides' names tell them apart, and so do the directories of their archives.
func TestWaysHaveNamesOfTheirOwn(t *testing.T) {
	p15, p18 := program{"/15/pg_dump", "15.1", 15}, program{"/18/pg_dump", "18.4", 18}
	pg := append(pgDumpWays(p15, 2, true, true), pgDumpWays(p18, 2, true, false)...)
	pg = append(append(pg, plainZstd(p15, "zstd")), weirWays("/builds/weir-1.2", 2, Plan{Slow: true}, "--no-analyze")...)
	my := append(mydumperWays(program{"/a/mydumper", "0.10.0", 0}, 2), mydumperWays(program{"/b/mydumper", "1.0.3", 1}, 2)...)
	my = append(append(my, mariadbDump("d", "c", "z")), weirWays("weir", 2, Plan{Slow: true}, "")...)
	for _, ways := range [][]way{pg, my, profileWays("weir", []string{"balanced", "turbo"})} {
		for _, kind := range []string{dumps, restores} {
			names, dirs := make(map[string]bool), make(map[string]bool)
			for _, w := range of(ways, kind) {
				name, dir := w.named(kind), archiveDir("/x", w.name)
				if names[name] || dirs[dir] {
					t.Errorf("%s: two ways are called %s", kind, name)
				}
				names[name], dirs[dir] = true, true
				if d := w.describe(kind); d == "" || strings.Contains(d, "/15/") {
					t.Errorf("%s: %q", name, d)
				} else if w.tells && !strings.HasPrefix(d, "weir ") {
					t.Errorf("%s: %q: another build is another way", name, d)
				}
			}
			if len(names) == 0 {
				t.Errorf("no ways for %s", kind)
			}
		}
	}
}

func TestRunMeasuresAPipeline(t *testing.T) {
	dir := t.TempDir()
	out, gate := filepath.Join(dir, "out"), filepath.Join(dir, "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	open, err := os.OpenFile(gate, os.O_RDWR, 0) // for both, so that nobody waits for the other to open it
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	// The first program uses processor time and holds 64 MB, until that has been seen.
	seen := false
	p := pipeline{stages: [][]string{
		{"sh", "-c", "x=$(head -c 64000000 /dev/zero | tr '\\0' 'a'); sleep 0.3; read go <" + gate + "; echo ${#x} $WORD"}, {"cat"},
	}, env: []string{"WORD=hello"}, stdout: out, looked: func(bytes int64) {
		if bytes >= 64e6 && !seen {
			seen = true
			if _, err := open.WriteString("go\n"); err != nil {
				t.Error(err)
			}
		}
	}}
	u, err := run(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(out); err != nil || string(b) != "64000000 hello\n" {
		t.Errorf("wrote %q, %v", b, err)
	}
	if u.seconds < 0.3 || u.peak < 64e6 || u.peak > 1e9 || u.process.CPUSeconds() <= 0 {
		t.Errorf("measured %+v", u)
	}
}

func TestRunReportsEveryStage(t *testing.T) {
	for name, tc := range map[string]struct {
		p    pipeline
		want string
	}{
		"first":      {pipeline{stages: [][]string{{"sh", "-c", "echo broken >&2; exit 3"}, {"cat"}}}, "sh: exit status 3: broken"},
		"last":       {pipeline{stages: [][]string{{"true"}, {"sh", "-c", "echo oh >&2; exit 4"}}}, "sh: exit status 4: oh"},
		"not there":  {command("/nowhere/at-all"), "start at-all"},
		"no input":   {pipeline{stages: [][]string{{"cat"}}, stdin: "/nowhere/at-all"}, "read /nowhere/at-all"},
		"then start": {pipeline{stages: [][]string{{"cat"}, {"/nowhere/at-all"}}, stdin: "/dev/null"}, "start at-all"},
	} {
		if _, err := run(t.Context(), tc.p); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: said %v, want %q", name, err, tc.want)
		}
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	marker := filepath.Join(t.TempDir(), "running")
	done := make(chan error, 1)
	go func() {
		_, err := run(ctx, command("sh", "-c", "touch "+marker+"; sleep 600"))
		done <- err
	}()
	testkit.Eventually(t, "the command runs", func() bool {
		_, err := os.Stat(marker)
		return err == nil
	})
	cancel()
	if err := <-done; err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
		t.Errorf("said %v", err)
	}
}

// Every copy method brings all bytes, and says so when it does not.
func TestCopyMethodsAreWhole(t *testing.T) {
	block := []byte(strings.Repeat("0123456789", 1000))
	for _, m := range copyMethods() {
		var n counter
		if err := m.copy(&n, plainReader{&repeating{block: block, left: 3*10_000 + 7}}); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if err := atLeast(int64(n), 30_007); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
	if err := atLeast(1, 2); err == nil {
		t.Error("a copy that is cut short was taken")
	}
}

func TestCompressionsThatLoseBytesAreFound(t *testing.T) {
	r := &rig{o: Options{Plan: Plan{Methods: []string{"zstd:1"}}}}
	all, err := r.encodings()
	if err != nil {
		t.Fatal(err)
	}
	var packed strings.Builder
	text := []byte(strings.Repeat("rows of text\n", 1000))
	if err := pack(&packed, all[0], text); err != nil {
		t.Fatal(err)
	}
	if err := sameText(all[0], []byte(packed.String()), text[1:]); err == nil {
		t.Error("other text was taken for the same")
	}
	if err := unpack(all[0], []byte(packed.String()), 5); err == nil {
		t.Error("another length was taken for the same")
	}
	if err := sizeIs(100, 110); err == nil {
		t.Error("another size was taken for the same")
	}
	r.o.Plan.Methods = []string{"brotli"}
	if _, err := r.encodings(); err == nil {
		t.Error("a compression that does not exist was taken")
	}
}

func TestSizesAreWrittenOut(t *testing.T) {
	for bytes, want := range map[int64]string{MB / 2: "0.5 MB", 128 * MB: "128 MB", 1300 * MB: "1300 MB", 12345 * MB: "12345 MB"} {
		if got := sizeText(bytes); got != want {
			t.Errorf("%d bytes are %s, want %s", bytes, got, want)
		}
	}
}
