package backupbench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/lab"
	backupdata "github.com/weirdb/weir/internal/ruler/bench/backup/data"
	"github.com/weirdb/weir/internal/ruler/bench/sqldb"
)

// postgresServer is a PostgreSQL server, private or not.
type postgresServer struct {
	base
	admin *pgx.Conn
}

// postgresSettings keep the server's background work out of the rounds. Everything else is at
// its default, with a log large enough for a load.
var postgresSettings = map[string]string{
	"autovacuum": "off", "max_wal_size": "8GB", "checkpoint_timeout": "1h", "maintenance_work_mem": "256MB",
}

func openPostgres(ctx context.Context, o *Options) (_ engine, err error) {
	s := &postgresServer{base: base{dsn: o.DSN}}
	if s.dsn == "" {
		private, err := lab.StartPostgres(ctx, lab.PostgresConfig{Durability: lab.Prod, SharedBuffers: "256MB", Settings: postgresSettings, BinDir: o.BinDir})
		if err != nil {
			return nil, err
		}
		s.lab, s.dsn = private, private.DSN("postgres")
	}
	if s.admin, err = pgx.Connect(ctx, s.dsn); err != nil {
		return nil, errors.Join(fmt.Errorf("connect: %w", err), s.close(ctx))
	}
	db, err := sqldb.OpenPostgres(s.dsn, 1)
	if err == nil {
		s.server, err = sqldb.Describe(ctx, db, "fsync", "synchronous_commit", "full_page_writes", "wal_level", "shared_buffers", "maintenance_work_mem", "max_wal_size", "autovacuum")
		err = errors.Join(err, db.Close())
	}
	if err != nil {
		return nil, errors.Join(err, s.close(ctx))
	}
	return s, nil
}

func (s *postgresServer) place(database string) place {
	p, password, err := withoutPassword(s.dsn, database)
	if err != nil {
		return place{dsn: s.dsn, database: database} // Options.validate has checked it
	}
	// libpq's variables can express everything in a DSN, such as TLS.
	if p.env, err = pg.Environment(s.dsn, database); err != nil {
		p.env = nil
	}
	if password != "" {
		p.env, p.secret = append(p.env, "PGPASSWORD="+password), true
	}
	return p
}

func (s *postgresServer) exec(ctx context.Context, sql string) error {
	if _, err := s.admin.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%s: %w", first(sql), err)
	}
	return nil
}

// first is the start of a statement, for errors.
func first(sql string) string {
	if len(sql) > 60 {
		return sql[:60] + " …"
	}
	return sql
}

func (s *postgresServer) recreate(ctx context.Context, database string) error {
	if err := s.drop(ctx, database); err != nil {
		return err
	}
	return s.exec(ctx, "CREATE DATABASE "+pg.Ident(database)+" TEMPLATE template0")
}

func (s *postgresServer) drop(ctx context.Context, database string) error {
	return s.exec(ctx, "DROP DATABASE IF EXISTS "+pg.Ident(database)+" WITH (FORCE)")
}

// connect connects to another database of the server.
func (s *postgresServer) connect(ctx context.Context, database string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(s.dsn)
	if err != nil {
		return nil, fmt.Errorf("read DSN: %w", err)
	}
	cfg.Database = database
	c, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", database, err)
	}
	return c, nil
}

func (s *postgresServer) load(ctx context.Context, database string, tables []*backupdata.Table, seed uint64) (err error) {
	c, err := s.connect(ctx, database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(context.WithoutCancel(ctx))) }()
	var finish []string
	for _, t := range tables {
		if _, err := c.Exec(ctx, t.Create(backupdata.PostgreSQL)); err != nil {
			return fmt.Errorf("create table %s: %w", t.Name, err)
		}
		if _, err := c.PgConn().CopyFrom(ctx, t.Reader(backupdata.PostgreSQL, seed), t.Load(backupdata.PostgreSQL, "")); err != nil {
			return fmt.Errorf("fill table %s: %w", t.Name, err)
		}
		finish = append(finish, t.Finish(backupdata.PostgreSQL)...)
	}
	for _, sql := range append(finish, "VACUUM ANALYZE") {
		if _, err := c.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", first(sql), err)
		}
	}
	return nil
}

func (s *postgresServer) settle(ctx context.Context) error { return s.exec(ctx, "CHECKPOINT") }

// sums adds up a hash of each row's text. The server computes it, so that a tool's mistake in
// reading rows cannot hide in the comparison.
func (s *postgresServer) sums(ctx context.Context, database string) (_ sums, err error) {
	out := sums{tables: make(map[string]string)}
	c, err := s.connect(ctx, database)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, c.Close(context.WithoutCancel(ctx))) }()
	rows, err := c.Query(ctx, "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
	if err != nil {
		return out, fmt.Errorf("list tables: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return out, fmt.Errorf("list tables: %w", err)
	}
	for _, name := range names {
		var n int64
		var sum string
		err := c.QueryRow(ctx, "SELECT count(*), coalesce(sum(hashtextextended(t::text, 0)), 0)::text FROM "+pg.Qualified("public", name)+" t").Scan(&n, &sum)
		if err != nil {
			return out, fmt.Errorf("compute the checksum of table %s: %w", name, err)
		}
		out.rows += n
		out.tables[name] = fmt.Sprintf("%d rows, sum %s", n, sum)
	}
	err = c.QueryRow(ctx, `SELECT (SELECT count(*) FROM pg_indexes WHERE schemaname = 'public') || ' indexes, ' ||
		(SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND convalidated) || ' foreign keys, ' ||
		(SELECT count(*) FROM pg_constraint WHERE contype = 'p' AND connamespace = 'public'::regnamespace) || ' primary keys'`).Scan(&out.objects)
	if err != nil {
		return out, fmt.Errorf("count indexes and constraints: %w", err)
	}
	return out, nil
}

func (s *postgresServer) close(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	var errs []error
	if s.admin != nil {
		errs = append(errs, s.admin.Close(ctx))
	}
	if s.lab != nil {
		errs = append(errs, s.lab.Stop(ctx))
	}
	return errors.Join(errs...)
}

// ways lists every installed version of pg_dump that is new enough for the server, each with
// its own pg_restore, and weir.
func (s *postgresServer) ways(ctx context.Context, o *Options, jobs int) (ways []way, missing []string) {
	dirs := o.Tools
	own, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err == nil {
		dirs = append(dirs[:len(dirs):len(dirs)], own...)
	}
	server, _ := strconv.Atoi(strings.SplitN(s.server.Version, ".", 2)[0])
	newest := 0
	for _, p := range find(ctx, dirs, "pg_dump") {
		if p.major < server {
			missing = append(missing, fmt.Sprintf("pg_dump %s is older than the server", p.version))
			continue
		}
		newest = max(newest, p.major)
		ways = append(ways, pgDumpWays(p, jobs, o.Plan.Slow, p.major == server)...)
		if p.major > server {
			missing = append(missing, fmt.Sprintf("pg_restore %s sets parameters that a server of version %d does not know: its backups are measured, but not restored", p.version, server))
		}
	}
	if len(ways) == 0 {
		missing = append(missing, "no pg_dump for this server was found")
	}
	if newest > 0 && newest < 16 {
		missing = append(missing, "no pg_dump of version 16 or newer, which compresses with zstd, was found: name its directory with --tools")
	}
	if zstd, err := exec.LookPath("zstd"); err == nil && len(ways) > 0 && o.Plan.Slow {
		ways = append(ways, plainZstd(find(ctx, dirs, "pg_dump")[0], zstd))
	}
	mine := weirWays(o.Binary, jobs, o.Plan, "--no-analyze")
	binary := weirWay(o.Binary, "weir, binary rows", []string{"--jobs=" + strconv.Itoa(jobs), "--compress=zstd:1", "--binary"}, []string{"--jobs=" + strconv.Itoa(jobs), "--no-analyze"})
	if o.Plan.Slow {
		mine = append(mine, binary)
	}
	return append(ways, mine...), missing
}

// pgDumpWays are the ways of one version of pg_dump. The first one only sets jobs. Only the
// server's own version also restores.
func pgDumpWays(p program, jobs int, slow, own bool) []way {
	restoreName := fmt.Sprintf("pg_restore %d", p.major)
	j := "-j" + strconv.Itoa(jobs)
	make1 := func(name string, flags ...string) way {
		return way{
			name: fmt.Sprintf("pg_dump %d, %s", p.major, name),
			dump: func(db place, dir string) pipeline {
				argv := append([]string{p.path, "-Fd", j, "-f", dir + "/dump"}, flags...)
				return pipeline{stages: [][]string{argv}, env: db.env}
			},
			check: func(dir string) pipeline {
				return pipeline{stages: [][]string{{p.beside("pg_restore"), "-f", "/dev/null", dir + "/dump"}}}
			},
			restore: func(db place, dir string) pipeline {
				return pipeline{stages: [][]string{{p.beside("pg_restore"), j, "-d", db.database, "--exit-on-error", dir + "/dump"}}, env: db.env}
			},
			only: dumps,
		}
	}
	out := []way{make1("gzip"), make1("gzip:1", "-Z1"), make1("none", "-Z0")}
	if own {
		out[1].only, out[1].restoreName = "", restoreName
	}
	if p.major >= 16 {
		for _, c := range []string{"zstd:1", "zstd:3", "lz4"} {
			if c == "zstd:1" || slow {
				w := make1(c, "--compress="+c)
				w.optional = true
				out = append(out, w)
			}
		}
	}
	if slow {
		custom := make1("one file, gzip")
		custom.dump = func(db place, dir string) pipeline {
			return pipeline{stages: [][]string{{p.path, "-Fc", "-f", dir + "/dump"}}, env: db.env}
		}
		out = append(out, custom)
	}
	return out
}

// plainZstd is a common way in scripts.
func plainZstd(p program, zstd string) way {
	return way{
		name: fmt.Sprintf("pg_dump %d | zstd", p.major),
		dump: func(db place, dir string) pipeline {
			return pipeline{stages: [][]string{{p.path}, {zstd, "-q", "-1", "-T0", "-o", dir + "/dump.sql.zst"}}, env: db.env}
		},
		check:       func(dir string) pipeline { return command(zstd, "-q", "-t", dir+"/dump.sql.zst") },
		restoreName: "zstd | psql",
		restore: func(db place, dir string) pipeline {
			return pipeline{stages: [][]string{
				{zstd, "-q", "-dc", dir + "/dump.sql.zst"},
				{p.beside("psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", db.database, "-o", "/dev/null"},
			}, env: db.env}
		},
	}
}
