package backupcmd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
	"github.com/weirdb/weir/internal/backup/bulk/postgres/pgtest"
	"github.com/weirdb/weir/internal/backup/notice"
	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

func TestBackupCommandLines(t *testing.T) {
	program.Script(t, "testdata/backup.txt")
}

// shopSQL fills a source. What is random does not compress, so that a rate limit
// holds a backup back.
const shopSQL = `
CREATE TABLE orders (id int PRIMARY KEY, note text NOT NULL);
INSERT INTO orders SELECT i, string_agg(md5(random()::text), '') FROM generate_series(1, 2000) i, generate_series(1, 20) GROUP BY i;
CREATE INDEX ON orders (note text_pattern_ops);
CREATE TABLE "Größe ""x""" (a int, b bytea);
INSERT INTO "Größe ""x""" SELECT i, decode(md5(i::text), 'hex') FROM generate_series(1, 500) i;
CREATE VIEW big AS SELECT * FROM orders WHERE id > 1000;
`

// shop is a server with a source database, and how to ask it things.
type shop struct {
	t *testing.T
	p *lab.Postgres
}

// server is of all shops that neither configure theirs nor break it.
var server = labtest.Share(func(ctx context.Context) (*lab.Postgres, error) {
	return lab.StartPostgres(ctx, lab.PostgresConfig{Durability: lab.Fast, Preload: []string{}})
})

// newShop makes the source database, and removes what other tests have left beside it.
func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{t, server.Get(t)}
	for _, list := range []string{
		"SELECT 'DATABASE ' || quote_ident(datname) || ' WITH (FORCE)' FROM pg_database WHERE datname <> 'postgres' AND NOT datistemplate",
		"SELECT 'ROLE ' || quote_ident(rolname) FROM pg_roles WHERE rolname <> current_user AND rolname !~ '^pg_'",
	} {
		for what := range strings.Lines(s.psql("postgres", list)) {
			s.psql("postgres", "DROP "+what)
		}
	}
	return s.filled()
}

// newOwnShop is newShop with a server of its own.
func newOwnShop(t *testing.T, cfg lab.PostgresConfig) *shop {
	t.Helper()
	cfg.Durability, cfg.Preload = lab.Fast, []string{}
	s := &shop{t, labtest.Postgres(t, cfg)}
	return s.filled()
}

func (s *shop) filled() *shop {
	s.t.Helper()
	clitest.ClearEnvironment(s.t)
	s.psql("postgres", "CREATE DATABASE shop")
	s.psql("shop", shopSQL)
	return s
}

func (s *shop) dsn(db string) string { return s.p.DSN(db) }

// psql runs a script and returns what it prints.
func (s *shop) psql(db, script string) string {
	s.t.Helper()
	out, err := pgtest.Psql(s.p, db, script)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// print is what a database holds, in short.
func (s *shop) print(db string) string {
	s.t.Helper()
	return s.psql(db, `SELECT count(*), md5(string_agg(o::text, ',' ORDER BY id)) FROM orders o;
SELECT count(*), md5(string_agg(g::text, ',' ORDER BY a)) FROM "Größe ""x""" g;
SELECT count(*) FROM big; SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1`)
}

func TestBackupAndRestoreAPostgresDatabase(t *testing.T) {
	s := newShop(t)
	want := s.print("shop")
	dir := filepath.Join(t.TempDir(), "repo")
	out := clitest.Decode[notice.Outcome](t, program.Must(t, "backup", s.dsn("shop"), "--to", dir, "--json", "--chunk-size", "256kB"))
	if !out.OK || out.Tables != 2 || out.Rows != 2500 || out.Label != "shop" || out.ID == "" {
		t.Errorf("outcome: %+v", out)
	}

	t.Run("list, cat and verify", func(t *testing.T) {
		c := clitest.Decode[catalogue](t, program.Must(t, "backup", "list", dir, "--json"))
		if len(c.Backups) != 1 || c.Backups[0].ID != out.ID || c.Backups[0].State != "complete" {
			t.Errorf("catalogue: %+v", c)
		}
		if text := program.Must(t, "backup", "list", dir); !strings.Contains(text, out.ID) || !strings.Contains(text, "database of postgresql") {
			t.Errorf("list: %s", text)
		}
		if n := strings.Count(program.Must(t, "backup", "cat", dir, "--list"), "db/shop/data/public.orders/"); n < 2 {
			t.Errorf("orders has %d chunks, want it split", n)
		}
		list := program.Must(t, "backup", "cat", dir, "--list")
		_, path, _ := strings.Cut(list, "db/shop/data/public.Gr")
		path, _, _ = strings.Cut("db/shop/data/public.Gr"+path, "  ")
		rows := program.Must(t, "backup", "cat", dir, out.ID, path)
		if strings.Count(rows, "\n") != 500 {
			t.Errorf("%d rows", strings.Count(rows, "\n"))
		}
		v := clitest.Decode[verifyReport](t, program.Must(t, "backup", "verify", dir, "--restore", "--json"))
		if !v.OK || v.Restore == nil || v.Restore.Rows != 2500 {
			t.Errorf("verification: %+v", v)
		}
		program.Refuse(t, cli.ExitFailed, []string{"--list"}, "backup", "cat", dir, "db/nothing")
	})

	t.Run("restore under another name", func(t *testing.T) {
		plan := program.Must(t, "restore", dir, "--to", s.dsn("postgres"), "--create", "--rename", "shop=copy", "--dry-run")
		if !strings.Contains(plan, "TABLE public.orders") {
			t.Errorf("plan: %s", plan)
		}
		if n := s.psql("postgres", "SELECT count(*) FROM pg_database WHERE datname = 'copy'"); n != "0" {
			t.Error("a dry run has made a database")
		}
		text := program.Must(t, "restore", dir, "--to", s.dsn("postgres"), "--create", "--rename", "shop=copy", "--verify")
		if got := s.print("copy"); got != want {
			t.Errorf("copy:\n%s\nwant\n%s", got, want)
		}
		if !strings.Contains(text, "2 tables, 2500 rows") || !strings.Contains(text, "verified by rows") {
			t.Errorf("it says %s", text)
		}
		program.Refuse(t, cli.ExitFailed, []string{"copy", "--clean"}, "restore", dir, "--to", s.dsn("copy"))
		program.Must(t, "restore", dir, "--to", s.dsn("copy"), "--clean", "--if-exists", "-q")
		if got := s.print("copy"); got != want {
			t.Errorf("after --clean:\n%s\nwant\n%s", got, want)
		}
	})

	t.Run("one table", func(t *testing.T) {
		s.psql("postgres", "CREATE DATABASE part")
		program.Must(t, "restore", dir, "--to", s.dsn("part"), "-t", "orders")
		if got := s.psql("part", "SELECT count(*), (SELECT count(*) FROM pg_tables WHERE schemaname = 'public') FROM orders"); got != "2000|1" {
			t.Errorf("got %s", got)
		}
	})

	t.Run("as a stream", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "b.tar")
		program.Must(t, "backup", s.dsn("shop"), "--to", file, "-q", "--compress", "gzip:6", "-T", "orders")
		program.Must(t, "backup", "verify", file)
		stream := program.Call(t, "backup", s.dsn("shop"), "--to", "-")
		if stream.Code != cli.ExitFine || len(stream.Stdout) < 1<<19 || !strings.Contains(stream.Stderr, "2 tables") {
			t.Fatalf("stream of %d bytes, exit %d: %s", len(stream.Stdout), stream.Code, stream.Stderr)
		}
		if err := os.WriteFile(file, []byte(stream.Stdout), 0o600); err != nil {
			t.Fatal(err)
		}
		program.Must(t, "restore", file, "--to", s.dsn("postgres"), "--create", "--rename", "shop=streamed")
		if got := s.print("streamed"); got != want {
			t.Errorf("streamed:\n%s\nwant\n%s", got, want)
		}
		if err := os.WriteFile(file, []byte(stream.Stdout[:len(stream.Stdout)/2]), 0o600); err != nil {
			t.Fatal(err)
		}
		program.Refuse(t, cli.ExitFailed, nil, "restore", file, "--to", s.dsn("postgres"), "--create", "--rename", "shop=half")
	})

	t.Run("the environment says where the server is", func(t *testing.T) {
		t.Setenv("PGHOST", s.p.Host())
		t.Setenv("PGPORT", fmt.Sprint(s.p.Port()))
		t.Setenv("PGUSER", s.p.User())
		t.Setenv("PGDATABASE", "shop")
		if o := clitest.Decode[notice.Outcome](t, program.Must(t, "backup", "--to", dir, "--schema-only", "--json")); o.Label != "shop" || o.Rows != 0 {
			t.Errorf("outcome: %+v", o)
		}
		if r := program.Call(t, "restore", dir, "--to", s.dsn("postgres"), "--create", "--rename", "shop=bare", "--dry-run"); r.Code != cli.ExitFine || !strings.Contains(r.Stderr, "is partial") {
			t.Errorf("restored without a warning: %s", r)
		}
		if text := program.Must(t, "backup", "list", dir); strings.Count(text, ", partial\n") != 1 {
			t.Errorf("it does not tell which one is partial:\n%s", text)
		}
	})

	t.Run("prune", func(t *testing.T) { // one without rows does not stand in for one with them
		program.Must(t, "backup", s.dsn("shop"), "--to", dir, "-q")
		plan := clitest.Decode[pruneReport](t, program.Must(t, "backup", "prune", dir, "--keep-last", "1", "--dry-run", "--json"))
		if len(plan.Plan) != 3 || plan.Plan[0].Keep || !plan.Plan[1].Keep || !plan.Plan[2].Keep || len(plan.Removed) != 0 {
			t.Errorf("plan: %+v", plan)
		}
		if text := program.Must(t, "backup", "prune", dir, "--keep-last", "1"); !strings.Contains(text, "removed 1 backups") {
			t.Errorf("it says %s", text)
		}
		if c := clitest.Decode[catalogue](t, program.Must(t, "backup", "list", dir, "--json")); len(c.Backups) != 2 || c.Backups[0].ID == out.ID {
			t.Errorf("left: %+v", c.Backups)
		}
	})
}

// A backup that did not reach its server leaves nothing, so that --resume finds
// the one that did.
func TestBackupThatNeverBeganLeavesNothing(t *testing.T) {
	for _, dsn := range []string{"postgres://nobody@127.0.0.1:1/shop", "mysql://nobody@127.0.0.1:1/shop"} {
		place := t.TempDir()
		program.Refuse(t, cli.ExitFailed, []string{"connect"}, "backup", dsn, "--to", place)
		if left, err := os.ReadDir(place); err != nil || len(left) != 0 {
			t.Errorf("%s: %v is left: %v", dsn, left, err)
		}
	}
	program.Refuse(t, cli.ExitUsage, []string{"unknown kind of database"}, "backup", "mysq://nobody@h/shop", "--to", t.TempDir())

	// Nor does one whose page cannot be served.
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, verb := range [][]string{{"backup", "postgres://nobody@127.0.0.1:1/shop"}, {"backup", "base", "postgres://nobody@127.0.0.1:1/"}} {
		place := t.TempDir()
		program.Refuse(t, cli.ExitFailed, []string{"listen for --admin"}, append(verb, "--to", place, "--admin", taken.Addr().String())...)
		if left, err := os.ReadDir(place); err != nil || len(left) != 0 {
			t.Errorf("%s: %v is left: %v", verb, left, err)
		}
	}
}

func TestBackupOfAClusterToS3Encrypted(t *testing.T) {
	s := newShop(t)
	s.psql("postgres", "CREATE ROLE clerk LOGIN PASSWORD 'secret'; ALTER DATABASE shop OWNER TO clerk")
	want := s.print("shop")
	store := labtest.S3(t, lab.BrokerConfig{})
	for _, kv := range store.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		t.Setenv(name, value)
	}
	place := strings.Replace(store.URL(), "?", "/backups?", 1)
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	keys := t.TempDir()
	keyFile, otherFile := filepath.Join(keys, "key"), filepath.Join(keys, "other")
	recipients := filepath.Join(keys, "recipients")
	other, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{keyFile: key.String(), otherFile: other.String(), recipients: "# mine\n" + key.Recipient().String() + "\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program.Must(t, "backup", s.dsn("postgres"), "--cluster", "--to", place, "--encrypt-recipients-file", recipients, "--id", "c1", "-q")

	program.Refuse(t, cli.ExitFailed, []string{"no key", "--identity"}, "backup", "cat", place, "c1", "globals.sql")
	program.Refuse(t, cli.ExitFailed, []string{"wrong key"}, "backup", "cat", place, "c1", "globals.sql", "-i", otherFile)
	if text := program.Must(t, "backup", "cat", place, "c1", "globals.sql", "-i", keyFile); !strings.Contains(text, "CREATE ROLE clerk") {
		t.Errorf("globals: %s", text)
	}
	if text := program.Must(t, "backup", "verify", place); !strings.Contains(text, "stored bytes only") {
		t.Errorf("without a key: %s", text)
	}
	program.Refuse(t, cli.ExitFailed, []string{"wrong key"}, "backup", "verify", place, "-i", otherFile) // no damage: exit code 1
	program.Must(t, "backup", "verify", place, "-i", keyFile, "--restore")
	target := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast, Preload: []string{}})
	program.Must(t, "restore", place, "c1", "--to", target.DSN("postgres"), "-i", keyFile)
	copied := &shop{t, target}
	if got := copied.print("shop"); got != want {
		t.Errorf("copy:\n%s\nwant\n%s", got, want)
	}
	if owner := copied.psql("shop", "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = 'shop'"); owner != "clerk" {
		t.Errorf("the database belongs to %s", owner)
	}

	t.Setenv("AWS_SECRET_ACCESS_KEY", "not it")
	program.Refuse(t, cli.ExitFailed, []string{"s3://weir/backups", "AWS_SECRET_ACCESS_KEY"}, "backup", s.dsn("shop"), "--to", place)
	program.Refuse(t, cli.ExitFailed, []string{"s3://weir/backups", "AWS_SECRET_ACCESS_KEY"}, "backup", "list", place)
}

func TestBackupTellsOfItsOutcome(t *testing.T) {
	s := newShop(t)
	posted := make(chan notice.Outcome, 10)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var o notice.Outcome
		if err != nil || json.Unmarshal(body, &o) != nil {
			t.Errorf("posted %q: %v", body, err)
		}
		posted <- o
		if r.URL.Path == "/angry" {
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	t.Cleanup(hook.Close)
	dir := t.TempDir()
	repo, metrics, told := filepath.Join(dir, "repo"), filepath.Join(dir, "weir.prom"), filepath.Join(dir, "told")
	args := []string{
		"backup", s.dsn("shop"), "--to", repo, "--webhook", hook.URL + "/hook?secret=1", "--metrics-file", metrics,
		"--hook-before", "echo before >>" + told, "--hook-after", `echo "$WEIR_BACKUP_STATUS $WEIR_BACKUP_ID" >>` + told,
	}
	program.Must(t, append(args, "--id", "one")...)
	if o := <-posted; !o.OK || o.ID != "one" || o.Rows != 2500 {
		t.Errorf("posted %+v", o)
	}
	good, err := notice.ReadMetric(metrics, notice.LastSuccess+`{label="shop"}`)
	if err != nil || good == 0 {
		t.Errorf("last success %v, %v", good, err)
	}

	// A failure is an outcome, too, and keeps the time of the last success.
	program.Refuse(t, cli.ExitFailed, []string{"one", "exists"}, append(args, "--id", "one")...)
	if o := <-posted; o.OK || o.Error == "" {
		t.Errorf("posted %+v", o)
	}
	kept, err := notice.ReadMetric(metrics, notice.LastSuccess+`{label="shop"}`)
	success, err2 := notice.ReadMetric(metrics, `weir_backup_success{label="shop"}`)
	if kept != good || success != 0 || err != nil || err2 != nil {
		t.Errorf("last success %v, want %v; success %v; %v %v", kept, good, success, err, err2)
	}
	text, err := os.ReadFile(told)
	if want := "before\nok one\nbefore\nfailed \n"; string(text) != want || err != nil {
		t.Errorf("hooks told %q, want %q", text, want)
	}

	program.Refuse(t, cli.ExitFailed, []string{"nothing was backed up"}, "backup", s.dsn("shop"), "--to", repo, "--id", "two", "--hook-before", "exit 4",
		"--hook-after", `echo "$WEIR_BACKUP_STATUS $WEIR_BACKUP_ERROR" >`+told, "--metrics-file", metrics)
	if text, err := os.ReadFile(told); err != nil || !strings.HasPrefix(string(text), "failed ") || !strings.Contains(string(text), "--hook-before") {
		t.Errorf("of a hook that failed, others were told %q, %v", text, err)
	}
	program.Refuse(t, cli.ExitFailed, []string{"--hook-after", "complete all the same"}, "backup", s.dsn("shop"), "--to", repo, "--id", "three", "--hook-after", "exit 4")
	if r := program.Call(t, "backup", s.dsn("shop"), "--to", repo, "--id", "four", "--webhook", hook.URL+"/angry?secret=1"); r.Code != cli.ExitFine ||
		!strings.Contains(r.Stderr, "teapot") || strings.Contains(r.Stderr, "secret") {
		t.Errorf("a webhook that refuses: %s", r)
	}

	// JSON tells of workers, stages and memory, too.
	var inside struct {
		Workers   []bulk.WorkerPoolStats
		Pipeline  archive.Pipeline
		Limit     archive.Shares
		Footprint *bulk.Footprint
	}
	out := program.Must(t, "backup", s.dsn("shop"), "--to", repo, "--id", "json", "--json", "--max-jobs", "4", "--jobs", "2", "--idle-time", "1s", "--metrics-file", metrics)
	if err := json.Unmarshal([]byte(out), &inside); err != nil {
		t.Fatal(err)
	}
	if f := inside.Footprint; f == nil || f.Goroutines < 4 || f.Buffers < 256<<10 || f.Compressors <= 0 || f.Peak < f.Buffers {
		t.Errorf("footprint: %+v", f)
	} else if sum := f.Buffers + f.Sessions + f.Compressors + f.Lists + f.Rest + f.Stacks + f.Runtime + f.Program + f.Garbage; sum < f.Peak*9/10 || sum > f.Peak*11/10 {
		t.Errorf("the components are %d bytes, and the peak %d", sum, f.Peak)
	}
	if w := inside.Workers; len(w) != 1 || w[0].Start != 2 || w[0].Most != 4 || w[0].Completed != 2 {
		t.Errorf("workers: %+v", w)
	}
	if l := inside.Limit; inside.Pipeline.Chunks == 0 || l.Server+l.Own+l.Compressor+l.Storage < 0.999 {
		t.Errorf("pipeline: %+v, %+v", l, inside.Pipeline)
	}
	if peak, err := notice.ReadMetric(metrics, `weir_backup_workers_peak{label="shop"}`); err != nil || peak < 1 {
		t.Errorf("most workers by the metrics: %v, %v", peak, err)
	}
}

// TestBackupOfMariaDB shows that the DSN chooses the engine.
func TestBackupOfMariaDB(t *testing.T) {
	clitest.ClearEnvironment(t)
	m := labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, Light: true, Settings: map[string]string{"log_bin": "binlog", "local_infile": "1"}})
	run := func(db, script string) string {
		t.Helper()
		cmd := exec.Command("mariadb", "--no-defaults", "-u", m.User(), "-h", m.Host(), "-P", fmt.Sprint(m.Port()), "-N", "--password="+m.Password(), db)
		cmd.Stdin = strings.NewReader(script)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("mariadb: %v\n%s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("", "CREATE DATABASE shop; USE shop; CREATE TABLE orders (id int PRIMARY KEY, note text); INSERT INTO orders SELECT seq, md5(seq) FROM seq_1_to_3000")
	repo := t.TempDir()
	program.Must(t, "backup", m.DSN("shop"), "--to", repo, "-q")
	program.Must(t, "backup", "verify", repo, "--restore")
	run("", "DROP DATABASE shop")
	program.Must(t, "restore", repo, "--to", m.DSN(""), "--create", "--verify")
	if got := run("shop", "SELECT count(*), sum(length(note)) FROM orders"); got != "3000\t96000" {
		t.Errorf("restored: %s", got)
	}
	program.Refuse(t, cli.ExitUsage, []string{"of MySQL or MariaDB", "a server of PostgreSQL"}, "restore", repo, "--to", "postgres://nobody@localhost/x")
	program.Refuse(t, cli.ExitUsage, []string{"names no database", "--cluster"}, "backup", m.DSN(""), "--to", repo)
}
