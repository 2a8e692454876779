package backupbench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure"
	backupdata "github.com/weirdb/weir/internal/ruler/bench/backup/data"
)

// mysqlServer is a MariaDB or MySQL server, private or not.
type mysqlServer struct {
	base
	admin *sql.DB
}

func openMySQL(ctx context.Context, o *Options) (_ engine, err error) {
	s := &mysqlServer{base: base{dsn: o.DSN}}
	if s.dsn == "" {
		private, err := lab.StartMariaDB(ctx, lab.MySQLConfig{Durability: lab.Prod, BufferPool: "512M", BinDir: o.BinDir, Settings: map[string]string{"local_infile": "1"}})
		if err != nil {
			return nil, err
		}
		s.lab, s.dsn = private, private.DSN("")
	}
	if s.admin, err = s.connect(""); err != nil {
		return nil, errors.Join(err, s.close(ctx))
	}
	s.server = measure.Server{Name: "MySQL", Settings: make(map[string]string)}
	for _, name := range []string{"version", "innodb_flush_log_at_trx_commit", "sync_binlog", "innodb_doublewrite", "innodb_buffer_pool_size", "log_bin", "local_infile"} {
		var v string
		if err := s.admin.QueryRowContext(ctx, "SELECT @@GLOBAL."+name).Scan(&v); err != nil {
			return nil, errors.Join(fmt.Errorf("read setting %s: %w", name, err), s.close(ctx))
		}
		s.server.Settings[name] = v
	}
	s.server.Version = s.server.Settings["version"]
	delete(s.server.Settings, "version")
	if strings.Contains(s.server.Version, "MariaDB") {
		s.server.Name = "MariaDB"
	}
	return s, nil
}

// connect opens one connection to a database of the server.
func (s *mysqlServer) connect(database string) (*sql.DB, error) {
	p, password, err := withoutPassword(s.dsn, database)
	if err != nil {
		return nil, err
	}
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.Net, cfg.Addr, cfg.DBName = p.user, password, "tcp", p.addr(), database
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("read DSN: %w", err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(1)
	return db, nil
}

func (s *mysqlServer) place(database string) place {
	p, password, err := withoutPassword(s.dsn, database)
	if err != nil {
		return place{dsn: s.dsn, database: database} // Options.validate has checked it
	}
	if password != "" {
		p.env, p.secret = append(p.env, "MYSQL_PWD="+password), true
	}
	return p
}

func (s *mysqlServer) exec(ctx context.Context, db *sql.DB, statement string) error {
	if _, err := db.ExecContext(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", first(statement), err)
	}
	return nil
}

func (s *mysqlServer) recreate(ctx context.Context, database string) error {
	if err := s.drop(ctx, database); err != nil {
		return err
	}
	return s.exec(ctx, s.admin, "CREATE DATABASE "+database+" CHARACTER SET utf8mb4")
}

func (s *mysqlServer) drop(ctx context.Context, database string) error {
	return s.exec(ctx, s.admin, "DROP DATABASE IF EXISTS "+database)
}

func (s *mysqlServer) load(ctx context.Context, database string, tables []*backupdata.Table, seed uint64) (err error) {
	db, err := s.connect(database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var finish []string
	for _, t := range tables {
		if err := s.exec(ctx, db, t.Create(backupdata.MySQL)); err != nil {
			return err
		}
		handler := database + "." + t.Name
		mysql.RegisterReaderHandler(handler, func() io.Reader { return t.Reader(backupdata.MySQL, seed) })
		err := s.exec(ctx, db, t.Load(backupdata.MySQL, handler))
		mysql.DeregisterReaderHandler(handler)
		if err != nil {
			return err
		}
		finish = append(finish, t.Finish(backupdata.MySQL)...)
		finish = append(finish, "ANALYZE TABLE "+t.Name)
	}
	for _, statement := range finish {
		if err := s.exec(ctx, db, statement); err != nil {
			return err
		}
	}
	return nil
}

// settle makes the server write changes in its log to the tables, as far as possible.
func (s *mysqlServer) settle(ctx context.Context) error {
	return s.exec(ctx, s.admin, "FLUSH ENGINE LOGS")
}

func (s *mysqlServer) sums(ctx context.Context, database string) (_ sums, err error) {
	out := sums{tables: make(map[string]string)}
	db, err := s.connect(database)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	rows, err := db.QueryContext(ctx, "SELECT table_name FROM information_schema.tables WHERE table_schema = ? AND table_type = 'BASE TABLE' ORDER BY 1", database)
	if err != nil {
		return out, fmt.Errorf("list tables: %w", err)
	}
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return out, errors.Join(fmt.Errorf("list tables: %w", err), rows.Close())
		}
		names = append(names, name)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return out, fmt.Errorf("list tables: %w", err)
	}
	for _, name := range names {
		var n int64
		var table string
		var sum sql.NullString
		if err := db.QueryRowContext(ctx, "SELECT count(*) FROM "+name).Scan(&n); err != nil {
			return out, fmt.Errorf("count rows of %s: %w", name, err)
		}
		if err := db.QueryRowContext(ctx, "CHECKSUM TABLE "+name+" EXTENDED").Scan(&table, &sum); err != nil {
			return out, fmt.Errorf("compute the checksum of table %s: %w", name, err)
		}
		out.rows += n
		out.tables[name] = fmt.Sprintf("%d rows, sum %s", n, sum.String)
	}
	err = db.QueryRowContext(ctx, `SELECT CONCAT(
		(SELECT count(DISTINCT table_name, index_name) FROM information_schema.statistics WHERE table_schema = ?), ' indexes, ',
		(SELECT count(*) FROM information_schema.table_constraints WHERE table_schema = ? AND constraint_type = 'FOREIGN KEY'), ' foreign keys')`,
		database, database).Scan(&out.objects)
	if err != nil {
		return out, fmt.Errorf("count indexes and constraints: %w", err)
	}
	return out, nil
}

func (s *mysqlServer) close(ctx context.Context) error {
	var errs []error
	if s.admin != nil {
		errs = append(errs, s.admin.Close())
	}
	if s.lab != nil {
		errs = append(errs, s.lab.Stop(context.WithoutCancel(ctx)))
	}
	return errors.Join(errs...)
}

// ways lists mydumper, mariadb-dump and weir. mydumper is the baseline, if it is installed.
func (s *mysqlServer) ways(ctx context.Context, o *Options, jobs int) (ways []way, missing []string) {
	switch found := find(ctx, o.Tools, "mydumper"); {
	case len(found) == 0:
		missing = append(missing, "no mydumper was found: name its directory with --tools")
	case s.place("").secret:
		missing = append(missing, "mydumper is left out: it only takes the password on its command line, which all users can see")
	default:
		for _, p := range found {
			ways = append(ways, mydumperWays(p, jobs)...)
		}
	}
	dump, client := installed(o.Tools, "mariadb-dump"), installed(o.Tools, "mariadb")
	zstd, err := exec.LookPath("zstd")
	switch {
	case dump == "" || client == "":
		missing = append(missing, "mariadb-dump or mariadb was not found")
	case err != nil:
		missing = append(missing, "zstd was not found: mariadb-dump is left out")
	default:
		ways = append(ways, mariadbDump(dump, client, zstd))
		if gzip, err := exec.LookPath("gzip"); err == nil && o.Plan.Slow {
			w := mariadbDump(dump, client, zstd)
			w.name, w.only = "mariadb-dump | gzip", dumps
			w.dump = func(db place, dir string) pipeline {
				return pipeline{stages: [][]string{mariadbDumpArgs(dump, db), {gzip, "-c"}}, env: db.env, stdout: dir + "/dump.sql.gz"}
			}
			w.check = func(dir string) pipeline { return command(gzip, "-t", dir+"/dump.sql.gz") }
			ways = append(ways, w)
		}
	}
	return append(ways, weirWays(o.Binary, jobs, o.Plan, "")...), missing
}

// mydumperWays are the ways of one version of mydumper. It compresses with zstd from version 1
// on, with gzip before.
func mydumperWays(p program, jobs int) []way {
	threads := strconv.Itoa(jobs)
	server := func(db place) []string {
		return []string{"--host=" + db.host, "--port=" + db.port, "--user=" + db.user}
	}
	make1 := func(name string, flags ...string) way {
		return way{
			name: fmt.Sprintf("mydumper %s, %s", p.version, name), restoreName: "myloader " + p.version,
			dump: func(db place, dir string) pipeline {
				argv := append([]string{p.path}, server(db)...)
				argv = append(argv, "--database="+db.database, "--threads="+threads, "--outputdir="+dir+"/dump")
				return pipeline{stages: [][]string{append(argv, flags...)}, env: db.env}
			},
			restore: func(db place, dir string) pipeline {
				argv := append([]string{p.beside("myloader")}, server(db)...)
				argv = append(argv, "--database="+db.database, "--threads="+threads, "--directory="+dir+"/dump")
				return pipeline{stages: [][]string{argv}, env: db.env}
			},
		}
	}
	plain := make1("none")
	plain.only = dumps
	if p.major >= 1 {
		return []way{make1("zstd", "--compress=ZSTD"), plain}
	}
	return []way{make1("gzip", "--compress"), plain}
}

func mariadbDumpArgs(dump string, db place) []string {
	return []string{
		dump, "--no-defaults", "--protocol=tcp", "-h", db.host, "-P", db.port, "-u", db.user,
		"--single-transaction", "--quick", "--hex-blob", "--routines", "--triggers", db.database,
	}
}

func mariadbDump(dump, client, zstd string) way {
	return way{
		name: "mariadb-dump | zstd", restoreName: "zstd | mariadb",
		dump: func(db place, dir string) pipeline {
			return pipeline{stages: [][]string{mariadbDumpArgs(dump, db), {zstd, "-q", "-1", "-T0", "-o", dir + "/dump.sql.zst"}}, env: db.env}
		},
		check: func(dir string) pipeline { return command(zstd, "-q", "-t", dir+"/dump.sql.zst") },
		restore: func(db place, dir string) pipeline {
			return pipeline{stages: [][]string{
				{zstd, "-q", "-dc", dir + "/dump.sql.zst"},
				{client, "--no-defaults", "--protocol=tcp", "-h", db.host, "-P", db.port, "-u", db.user, db.database},
			}, env: db.env}
		},
	}
}
