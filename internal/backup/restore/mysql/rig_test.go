package mysql_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	dump "github.com/weirdb/weir/internal/backup/mysql"
	"github.com/weirdb/weir/internal/backup/restore"
	load "github.com/weirdb/weir/internal/backup/restore/mysql"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// patience bounds waits for what certainly comes.
const patience = 4 * time.Minute

// shared are servers for all tests that do not harm them, started when one needs
// them first.
var shared = struct {
	mu   sync.Mutex
	live map[lab.Flavor]*lab.MySQL
}{live: map[lab.Flavor]*lab.MySQL{}}

func TestMain(m *testing.M) {
	labtest.KnowNoAuthorities()
	code := m.Run()
	for _, s := range shared.live {
		if err := s.Discard(context.Background()); err != nil {
			code = 1
		}
	}
	os.Exit(code)
}

// eachServer runs f with MariaDB, and with MySQL where it is installed.
func eachServer(t *testing.T, f func(t *testing.T, m *lab.MySQL)) {
	t.Run("mariadb", func(t *testing.T) { f(t, server(t, lab.FlavorMariaDB)) })
	t.Run("mysql", func(t *testing.T) { f(t, server(t, lab.FlavorMySQL)) })
}

func config(flavor lab.Flavor) lab.MySQLConfig {
	cfg := lab.MySQLConfig{Durability: lab.Fast, Light: true, Settings: map[string]string{"local-infile": "1"}}
	if flavor == lab.FlavorMySQL {
		cfg.Settings["gtid-mode"], cfg.Settings["enforce-gtid-consistency"] = "ON", "ON"
	}
	return cfg
}

func server(t *testing.T, flavor lab.Flavor) *lab.MySQL {
	t.Helper()
	begin := lab.StartMariaDB
	if flavor == lab.FlavorMySQL {
		labtest.RequireMySQL(t)
		begin = lab.StartMySQL
	} else {
		labtest.RequireMariaDB(t)
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if s := shared.live[flavor]; s != nil {
		return s
	}
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	s, err := begin(ctx, config(flavor))
	if err != nil {
		t.Fatal(err)
	}
	shared.live[flavor] = s
	return s
}

// rig is a source database on a server, and a repository.
type rig struct {
	t    *testing.T
	m    *lab.MySQL
	db   string
	repo *archive.Repository
}

// newRig makes a database called after the test and runs a script in it.
func newRig(t *testing.T, m *lab.MySQL, script string) *rig {
	t.Helper()
	r := &rig{t: t, m: m, db: strings.ToLower(strings.NewReplacer("/", "_", "-", "_").Replace(t.Name()))}
	r.createDB(r.db)
	if script != "" {
		r.client(r.db, script)
	}
	r.repo = openRepo(t, t.TempDir())
	return r
}

// createDB makes a database that is gone after the test.
func (r *rig) createDB(name string) {
	r.t.Helper()
	r.admin("DROP DATABASE IF EXISTS "+my.Ident(name), "CREATE DATABASE "+my.Ident(name))
	r.dropAfter(name)
}

func (r *rig) dropAfter(name string) {
	r.t.Cleanup(func() { r.admin("DROP DATABASE IF EXISTS " + my.Ident(name)) })
}

// admin runs statements on a connection, which is cheaper than a client of its own.
func (r *rig) admin(statements ...string) {
	r.t.Helper()
	if err := r.m.Exec(context.Background(), statements...); err != nil { // a cleanup's, too
		r.t.Fatal(err)
	}
}

// with gives a setting of the server another value until the test ends.
func (r *rig) with(setting, value string) {
	r.t.Helper()
	was := r.client("", "SELECT @@GLOBAL."+setting)
	set := func(value string) {
		if _, err := strconv.Atoi(value); err != nil {
			value = my.Literal(value)
		}
		r.admin("SET GLOBAL " + setting + " = " + value)
	}
	set(value)
	r.t.Cleanup(func() { set(was) })
}

func (r *rig) maria() bool { return r.m.Flavor() == lab.FlavorMariaDB }

// tool runs a program of the server's own, beside its client.
func (r *rig) tool(name, stdin string, args ...string) string {
	r.t.Helper()
	dir := filepath.Dir(r.m.Client())
	if r.maria() {
		name = strings.Replace(name, "mysql", "mariadb", 1)
		name = strings.Replace(name, "mariadbdump", "mariadb-dump", 1)
	}
	cmd := exec.Command(filepath.Join(dir, name), append([]string{"--no-defaults", "--socket=" + r.m.Socket(), "--user=" + r.m.User(), "--default-character-set=utf8mb4"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		r.t.Fatalf("%s: %v\n%s", name, err, stderr.String())
	}
	return string(out)
}

// client runs a script.
func (r *rig) client(db, script string) string {
	r.t.Helper()
	args := []string{"--batch", "--skip-column-names"}
	if db != "" {
		args = append(args, "--database="+db)
	}
	return strings.TrimSpace(r.tool("mysql", script, args...))
}

var autoIncr = regexp.MustCompile(` AUTO_INCREMENT=\d+`)

// native is what the server's own tool makes of a database, without what differs
// each time.
func (r *rig) native(db string) string {
	r.t.Helper()
	args := []string{"--routines", "--events", "--triggers", "--hex-blob", "--order-by-primary", "--skip-extended-insert", "--skip-dump-date", db}
	if r.maria() {
		args = append([]string{"--dump-history"}, args...)
	} else {
		args = append([]string{"--set-gtid-purged=OFF"}, args...)
	}
	out := r.tool("mysqldump", "", args...)
	// Line by line: of a dump's thousands of rows a regular expression would read each
	// character.
	var b strings.Builder
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "--") {
			continue // a comment
		}
		if strings.Contains(line, " AUTO_INCREMENT=") {
			line = autoIncr.ReplaceAllString(line, "")
		}
		b.WriteString(line)
	}
	return b.String()
}

func (r *rig) session(db string) *my.Session {
	r.t.Helper()
	cfg, err := mywire.ParseDSN(r.m.DSN(db))
	if err != nil {
		r.t.Fatal(err)
	}
	s, err := my.Connect(r.t.Context(), cfg, db)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = s.Close() }) // it may be broken by then, on purpose
	return s
}

// exec runs statements in a session of their own.
func (r *rig) exec(s *my.Session, statements ...string) {
	r.t.Helper()
	for _, sql := range statements {
		if err := s.Exec(r.t.Context(), sql); err != nil {
			r.t.Fatalf("%.200s: %v", sql, err)
		}
	}
}

func (r *rig) backupCtx(ctx context.Context, o backup.Options, a archive.Options) (*backup.Result, error) {
	if o.DSN == "" {
		o.DSN = r.m.DSN(r.db)
	}
	if o.Jobs == 0 {
		o.Jobs = 2
	}
	if a.Parallel == 0 {
		a.Parallel = o.Jobs + 1
	}
	w, err := archive.Create(ctx, r.repo, a)
	if err != nil {
		return nil, err
	}
	return dump.Run(ctx, o, w)
}

func (r *rig) backup(o backup.Options, a archive.Options) *backup.Result {
	r.t.Helper()
	res, err := r.backupCtx(r.t.Context(), o, a)
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

func (r *rig) restoreCtx(ctx context.Context, o restore.Options) (*restore.Result, error) {
	reader, err := archive.Open(ctx, r.repo, archive.Latest, archive.ReadOptions{})
	if err != nil {
		return nil, err
	}
	if o.DSN == "" {
		o.DSN = r.m.DSN("")
	}
	if o.Jobs == 0 {
		o.Jobs = 2
	}
	res, err := load.Run(ctx, o, reader)
	return res, errors.Join(err, reader.Close())
}

// restored restores into a new database and returns its name.
func (r *rig) restored(o restore.Options) string {
	r.t.Helper()
	if o.Target == "" {
		o.Target = r.db + "_copy"
	}
	r.admin("DROP DATABASE IF EXISTS " + my.Ident(o.Target))
	r.dropAfter(o.Target)
	o.Create = true
	if o.Verify == "" {
		o.Verify = restore.VerifyRows
	}
	if _, err := r.restoreCtx(r.t.Context(), o); err != nil {
		r.t.Fatal(err)
	}
	return o.Target
}

// compare compares a copy with its source by the server's own dump.
func (r *rig) compare(want, copied string) {
	r.t.Helper()
	got := strings.ReplaceAll(r.native(copied), copied, r.db)
	if got == want {
		return
	}
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(a), len(b)) {
		var x, y string
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if x != y {
			r.t.Fatalf("the dumps differ in line %d:\nsource %.1000s\ncopy   %.1000s", i+1, x, y)
		}
	}
}

func openRepo(t *testing.T, dir string) *archive.Repository {
	t.Helper()
	repo, err := archive.OpenRepository(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return repo
}
