package binlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// record writes what a stream yields into files of a directory, and returns
// their names in order.
func record(t *testing.T, r *Recorder, src Source) {
	t.Helper()
	for {
		e, err := src.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return
		}
		if err == nil {
			err = r.Write(e)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// inDir makes the files of a Recorder, and notes their names.
func inDir(dir string, names *[]string) func(Position) (io.WriteCloser, error) {
	return func(start Position) (io.WriteCloser, error) {
		name := start.File
		if start.Pos > uint64(len(Magic)) {
			name += "-" + itoa(int(start.Pos))
		}
		*names = append(*names, name)
		return os.Create(filepath.Join(dir, name))
	}
}

// dumper finds the program that prints binary logs of the server's own version.
func (s target) dumper(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"mariadb-binlog", "mysqlbinlog"} {
		if path := filepath.Join(filepath.Dir(s.Client()), name); s.maria() == (name == "mariadb-binlog") {
			if _, err := os.Stat(path); err == nil {
				return path
			}
		}
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("no program beside %q prints binary logs", s.Client())
	}
	t.Logf("no program beside %q prints binary logs: its reading of the copies is not tested", s.Client())
	return ""
}

func (s target) print(t *testing.T, path string) string {
	t.Helper()
	program := s.dumper(t)
	if program == "" {
		return ""
	}
	cmd := exec.CommandContext(t.Context(), program, "--no-defaults", "--verbose", "--verify-binlog-checksum", path)
	cmd.Env = append(os.Environ(), "TZ=UTC")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, path, err, out)
	}
	return string(out)
}

func TestRecordedFilesAreTheServersFiles(t *testing.T) {
	eachServer(t, func(t *testing.T, s target) {
		_, c := s.database(t)
		run(t, c, "FLUSH BINARY LOGS")
		first := s.end(t, c).File
		run(t, c, "CREATE TABLE a (id INT, v TEXT)", "INSERT INTO a VALUES (1,'recorded')", "FLUSH BINARY LOGS",
			"INSERT INTO a VALUES (2,'recorded')", "UPDATE a SET id = 3", "FLUSH BINARY LOGS")
		dir, names := t.TempDir(), []string{}
		r := NewRecorder(inDir(dir, &names))
		record(t, r, s.stream(t, StreamConfig{Start: Start{Position: Position{first, 4}}, NonBlocking: true, Exact: true}))
		// It goes on where it was, on another connection.
		run(t, c, "INSERT INTO a VALUES (4,'recorded')")
		record(t, r, s.stream(t, StreamConfig{Start: Start{Position: r.Position()}, NonBlocking: true, Exact: true}))
		run(t, c, "FLUSH BINARY LOGS")
		record(t, r, s.stream(t, StreamConfig{Start: Start{Position: r.Position()}, NonBlocking: true, Exact: true}))
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if len(names) != 4 {
			t.Fatalf("files %q, want 4", names)
		}
		for _, name := range names[:3] {
			got := read(t, filepath.Join(dir, name))
			want := read(t, filepath.Join(s.DataDir(), name))
			// Servers send the format description without the mark of a file
			// that is being written, which is gone from a closed file too.
			if !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes, the server's file has %d and others", name, len(got), len(want))
			}
			if text := s.print(t, filepath.Join(dir, name)); text != "" && !strings.Contains(text, "recorded") {
				t.Errorf("%s is printed as %s", name, text)
			}
		}
	})
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestFileThatBeginsInsideTheServersFileIsALog(t *testing.T) {
	eachServer(t, func(t *testing.T, s target) {
		name, c := s.database(t)
		run(t, c, "CREATE TABLE a (id INT, v TEXT)", "INSERT INTO a VALUES (1,'before')")
		start := s.end(t, c)
		run(t, c, "INSERT INTO a VALUES (2,'after')", "BEGIN", "INSERT INTO a VALUES (3,'after')", "DELETE FROM a WHERE id = 1", "COMMIT")
		dir, names := t.TempDir(), []string{}
		r := NewRecorder(inDir(dir, &names))
		record(t, r, s.stream(t, StreamConfig{Start: Start{Position: start}, NonBlocking: true, Exact: true}))
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		want := []string{
			"begin", "insert a (2,after)", "commit", "begin", "insert a (3,after)", "delete a (1,before)", "commit",
		}
		path := filepath.Join(dir, names[0])
		f, err := OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		reader := NewReader(f, ReaderConfig{Want: in(name)})
		if diff := cmp.Diff(want, lines(t, reader)); diff != "" {
			t.Error(diff)
		}
		if end := s.end(t, c); reader.Position().Pos != end.Pos {
			t.Errorf("ends at %s, the server's log at %s", reader.Position(), end)
		}
		if text := s.print(t, path); text != "" && (!strings.Contains(text, "after") || !strings.Contains(text, "COMMIT")) {
			t.Errorf("printed as %s", text)
		}
	})
}

func TestFileReadsTheServersFiles(t *testing.T) {
	eachServer(t, func(t *testing.T, s target) {
		name, c := s.database(t)
		run(t, c, "FLUSH BINARY LOGS")
		s.quiet(t, c)
		pos := s.end(t, c)
		run(t, c, "CREATE TABLE a (id INT)", "INSERT INTO a VALUES (1)")
		path := filepath.Join(s.DataDir(), pos.File)
		want := []string{"begin", "statement CREATE TABLE a (id INT)", "commit", "begin", "insert a (1)", "commit"}
		check := func(what string, b []byte) {
			t.Helper()
			f, err := NewFile(bytes.NewReader(b), pos.File)
			if err != nil {
				t.Fatal(err)
			}
			r := NewReader(f, ReaderConfig{Want: in(name)})
			if diff := cmp.Diff(want, lines(t, r)); diff != "" {
				t.Errorf("%s: %s", what, diff)
			}
			if r.Executed() == nil {
				t.Errorf("%s: its beginning says which GTIDs came before", what)
			}
			if f.Offset() != int64(len(b)) {
				t.Errorf("%s: read to %d of %d bytes", what, f.Offset(), len(b))
			}
		}
		check("a file in use", read(t, path))
		run(t, c, "FLUSH BINARY LOGS")
		whole := read(t, path)
		check("a closed file", whole)
		checkDamage(t, whole)
	})
}

// checkDamage damages a log file in several ways.
func checkDamage(t *testing.T, whole []byte) {
	t.Helper()
	drain := func(b []byte) (*File, error) {
		f, err := NewFile(bytes.NewReader(b), "damaged")
		for err == nil {
			_, err = f.Next(t.Context())
		}
		return f, err
	}
	var ends []int64 // of events
	f, err := NewFile(bytes.NewReader(whole), "whole")
	for err == nil {
		ends = append(ends, f.Offset())
		_, err = f.Next(t.Context())
	}
	last := ends[len(ends)-2]
	for _, cut := range []int64{last + 1, last + HeaderLen, int64(len(whole)) - 1} {
		var truncated *TruncatedError
		if _, err := drain(whole[:cut]); !errors.As(err, &truncated) || truncated.Offset != last {
			t.Errorf("cut at %d: %v, want the event at %d named", cut, err, last)
		}
	}
	if _, err := drain(whole[:2]); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("two bytes: %v", err)
	}
	for i := range ends[:len(ends)-1] {
		b := bytes.Clone(whole)
		b[ends[i]+HeaderLen+3] ^= 1
		var sum *ChecksumError
		if _, err := drain(b); !errors.As(err, &sum) || sum.Offset != ends[i] {
			t.Errorf("event at %d changed: %v, want a checksum failure", ends[i], err)
		}
	}
	if _, err := drain(append([]byte("\xfdbin"), whole[4:]...)); !errors.Is(err, ErrEncrypted) {
		t.Errorf("magic of an encrypted file: %v", err)
	}
}

func TestLogsWithoutChecksums(t *testing.T) {
	eachServer(t, func(t *testing.T, s target) {
		name, c := s.database(t)
		run(t, c, "CREATE TABLE a (id INT)")
		start := s.end(t, c)
		before := one(t, c, "SELECT @@global.binlog_checksum")
		run(t, c, "INSERT INTO a VALUES (1)", "SET GLOBAL binlog_checksum = NONE", "INSERT INTO a VALUES (2)", "FLUSH BINARY LOGS", "INSERT INTO a VALUES (3)")
		want := []string{"begin", "insert a (1)", "commit", "begin", "insert a (2)", "commit", "begin", "insert a (3)", "commit"}
		if diff := cmp.Diff(want, s.log(t, Start{Position: start}, ReaderConfig{Want: in(name)})); diff != "" {
			t.Error(diff)
		}
		if before != "NONE" {
			run(t, c, "SET GLOBAL binlog_checksum = "+before)
		} else {
			run(t, c, "SET GLOBAL binlog_checksum = CRC32")
		}
		if diff := cmp.Diff(want, s.log(t, Start{Position: start}, ReaderConfig{Want: in(name)})); diff != "" {
			t.Errorf("once more: %s", diff)
		}
		run(t, c, "SET GLOBAL binlog_checksum = "+before)
	})
}

func TestEncryptedLogIsReadFromItsServerOnly(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte("1;"+strings.Repeat("0123456789abcdef", 4)+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil { // the server is somebody else
			t.Fatal(err)
		}
	}
	m := labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, Light: true, Settings: map[string]string{
		"plugin-load-add": "file_key_management", "file-key-management-filename": key, "encrypt-binlog": "ON",
	}})
	s := target{m}
	name, c := s.database(t)
	file := s.end(t, c).File
	run(t, c, "CREATE TABLE a (id INT)", "INSERT INTO a VALUES (1)")
	want := []string{"begin", "statement CREATE TABLE a (id INT)", "commit", "begin", "insert a (1)", "commit"}
	oldest := Start{Oldest: true}
	got := s.log(t, oldest, ReaderConfig{Want: in(name)})
	if diff := cmp.Diff(want, got[max(0, len(got)-len(want)):]); diff != "" {
		t.Error(diff)
	}
	run(t, c, "FLUSH BINARY LOGS")
	f, err := OpenFile(filepath.Join(s.DataDir(), file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Next(t.Context())
	}
	if !errors.Is(err, ErrEncrypted) {
		t.Errorf("%v, want ErrEncrypted", err)
	}
	copies, names := t.TempDir(), []string{}
	r := NewRecorder(inDir(copies, &names))
	record(t, r, s.stream(t, StreamConfig{Start: oldest, NonBlocking: true, Exact: true}))
	if text := s.print(t, filepath.Join(copies, file)); !strings.Contains(text, "CREATE TABLE a") {
		t.Errorf("the copy is printed as %s", text)
	}
	plain, err := OpenFile(filepath.Join(copies, file))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	got = lines(t, NewReader(plain, ReaderConfig{Want: in(name)}))
	if diff := cmp.Diff(want, got[max(0, len(got)-len(want)):]); diff != "" {
		t.Error(diff)
	}
}

// purge removes the files before one. What a stream has not read yet, and what a
// recovery would need, servers leave where it is, and say so in a warning only.
func (s target) purge(t *testing.T, c *mywire.Server, file string) {
	t.Helper()
	first := ""
	testkit.Await(t, func() bool {
		run(t, c, "PURGE BINARY LOGS TO '"+file+"'")
		files, err := c.Query(t.Context(), "SHOW BINARY LOGS")
		if err != nil {
			t.Fatal(err)
		}
		first = files[0][0].String
		return first == file
	}, func() string { return first + " is kept for ever" })
}

func TestWhatStandsInTheWayIsNamed(t *testing.T) {
	eachServer(t, func(t *testing.T, s target) {
		_, c := s.database(t)
		old, executed := s.end(t, c), NewReader(s.stream(t, StreamConfig{}), ReaderConfig{}).Executed()
		run(t, c, "CREATE TABLE a (id INT)", "FLUSH BINARY LOGS", "INSERT INTO a VALUES (1)", "FLUSH BINARY LOGS")
		run(t, c, "DROP USER IF EXISTS nobody", "CREATE USER nobody IDENTIFIED BY 'x'")
		nobody := mywire.ConnectConfig{Address: s.Addr(), User: "nobody", Password: "x"}
		end := s.end(t, c)
		s.purge(t, c, end.File)
		foreign, _ := ParseGTIDSet("0-1-5")
		if s.maria() {
			foreign, _ = ParseGTIDSet("00112233-4455-6677-8899-aabbccddeeff:1-5")
		}
		for _, tc := range []struct {
			name string
			cfg  StreamConfig
			want error
		}{
			{"purged file", StreamConfig{Start: Start{Position: old}}, ErrPurged},
			{"purged GTIDs", StreamConfig{Start: Start{GTIDs: executed}}, ErrPurged},
			{"no such file", StreamConfig{Start: Start{Position: Position{"nofile.000001", 4}}}, ErrPurged},
			{"behind the end", StreamConfig{Start: Start{Position: Position{end.File, end.Pos + 1000}}}, ErrPosition},
			{"other family", StreamConfig{Start: Start{GTIDs: foreign}}, ErrPosition},
			{"beyond 4 GiB", StreamConfig{Start: Start{Position: Position{end.File, 1 << 32}}}, nil},
			{"no privilege", StreamConfig{Server: nobody}, ErrPrivilege},
			{"no privilege, by position", StreamConfig{Server: nobody, Start: Start{Position: end}}, ErrPrivilege},
		} {
			if tc.cfg.Server.Address == "" {
				tc.cfg.Server = s.config()
			}
			ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
			st, err := Open(ctx, tc.cfg)
			for err == nil {
				_, err = st.Next(ctx)
			}
			cancel()
			var u *UnavailableError
			if tc.want != nil && (!errors.Is(err, tc.want) || !errors.As(err, &u)) {
				t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
			}
			if st != nil {
				_ = st.Close()
			}
		}
	})
}

func TestProbeSaysWhetherChangesCanBeFollowed(t *testing.T) {
	eachServer(t, func(t *testing.T, s target) {
		_, c := s.database(t)
		r, err := Probe(t.Context(), s.config())
		if err != nil || r.Err() != nil || r.End != s.end(t, c) || !r.GTIDs || r.MariaDB != s.maria() {
			t.Fatalf("%+v, %v", r, err)
		}
		run(t, c, "SET GLOBAL binlog_format = 'MIXED'", "SET GLOBAL binlog_row_image = 'MINIMAL'")
		r, err = Probe(t.Context(), s.config())
		run(t, c, "SET GLOBAL binlog_format = 'ROW'", "SET GLOBAL binlog_row_image = 'FULL'")
		if err != nil || !errors.Is(r.Err(), ErrFormat) || !errors.Is(r.Err(), ErrRowImage) {
			t.Errorf("%v, %v", r.Err(), err)
		}
		run(t, c, "DROP USER IF EXISTS nobody", "CREATE USER nobody IDENTIFIED BY 'x'")
		r, err = Probe(t.Context(), mywire.ConnectConfig{Address: s.Addr(), User: "nobody", Password: "x"})
		if err != nil || !errors.Is(r.Err(), ErrPrivilege) {
			t.Errorf("%v, %v, want ErrPrivilege", r, err)
		}
	})
}

func TestPrivilegesThatSuffice(t *testing.T) {
	eachServer(t, func(t *testing.T, s target) {
		name, c := s.database(t)
		run(t, c, "CREATE TABLE a (id INT)", "DROP USER IF EXISTS follower", "CREATE USER follower IDENTIFIED BY 'x'",
			"GRANT REPLICATION SLAVE ON *.* TO follower")
		follower := mywire.ConnectConfig{Address: s.Addr(), User: "follower", Password: "x"}
		executed := s.stream(t, StreamConfig{}).Executed()
		end := s.end(t, c)
		run(t, c, "INSERT INTO a VALUES (1)")
		want := []string{"begin", "insert a (1)", "commit"}
		for _, start := range []Start{{Position: end}, {GTIDs: executed}} {
			st := s.stream(t, StreamConfig{Server: follower, Start: start, NonBlocking: true})
			if diff := cmp.Diff(want, lines(t, NewReader(st, ReaderConfig{Want: in(name)}))); diff != "" {
				t.Errorf("from %+v: %s", start, diff)
			}
		}
		if _, err := Open(t.Context(), StreamConfig{Server: follower}); !errors.Is(err, ErrPrivilege) {
			t.Errorf("from the end, with REPLICATION SLAVE alone: %v", err)
		}
		run(t, c, "GRANT REPLICATION CLIENT ON *.* TO follower")
		if r, err := Probe(t.Context(), follower); err != nil || r.Err() != nil {
			t.Errorf("probe: %+v, %v", r, err)
		}
	})
}

func TestProbeNamesDatabasesThatAreNotLogged(t *testing.T) {
	s := target{labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, Light: true, Settings: map[string]string{"binlog-ignore-db": "quiet"}})}
	r, err := Probe(t.Context(), s.config())
	if err != nil || !strings.Contains(strings.Join(r.Warnings, "\n"), "changes of these databases are not logged: quiet") {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestServerWithoutALog(t *testing.T) {
	s := target{labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, Light: true, NoBinlog: true})}
	if _, err := Open(t.Context(), StreamConfig{Server: s.config()}); !errors.Is(err, ErrLogOff) {
		t.Errorf("open: %v", err)
	}
	r, err := Probe(t.Context(), s.config())
	if err != nil || !errors.Is(r.Err(), ErrLogOff) {
		t.Errorf("probe: %v, %v", r, err)
	}
}

// OpenFile opens the file at path, which is named as on its server.
func OpenFile(path string) (*File, error) {
	r, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open binary log: %w", err)
	}
	f, err := NewFile(r, filepath.Base(path))
	if err != nil {
		_ = r.Close()
		return nil, err
	}
	f.close = r.Close
	return f, nil
}
