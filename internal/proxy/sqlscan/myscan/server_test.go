package myscan

import (
	"database/sql"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// live is a real server, with which the scanner's answers are compared.
type live struct {
	*testing.T
	server *lab.MySQL
	mode   Mode // of the server, with its version
}

// TestAgainstMariaDB and TestAgainstMySQL compare the scanner's answers with those of real
// servers.
func TestAgainstMariaDB(t *testing.T) {
	againstServer(t, labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, Light: true}))
}

func TestAgainstMySQL(t *testing.T) {
	againstServer(t, labtest.MySQL(t, lab.MySQLConfig{Durability: lab.Fast}))
}

func againstServer(t *testing.T, server *lab.MySQL) {
	mode := Mode{MariaDB: server.Flavor() == lab.FlavorMariaDB, Version: versionID(t, server.Version())}
	for _, c := range []struct {
		name  string
		check func(live)
	}{
		{"literals", live.checkLiterals},
		{"executable comments", live.checkExecutable},
		{"counts", live.checkCounts},
		{"functions", live.checkFunctions},
		{"words", live.checkWords},
		{"settings", live.checkSettings},
		{"commits", live.checkCommits},
		{"state", live.checkState},
		{"inserts", live.checkInserts},
	} {
		t.Run(c.name, func(t *testing.T) { c.check(live{t, server, mode}) })
	}
}

var versionParts = regexp.MustCompile(`(\d+)\.(\d+)\.(\d+)`)

// versionID returns a version in the form of MYSQL_VERSION_ID.
func versionID(t *testing.T, version string) uint32 {
	m := versionParts.FindStringSubmatch(version)
	if m == nil {
		t.Fatalf("version %q", version)
	}
	id := 0
	for _, part := range m[1:] {
		n, err := strconv.Atoi(part)
		if err != nil {
			t.Fatal(err)
		}
		id = id*100 + n
	}
	return uint32(id)
}

// session opens a connection for this test alone.
func (l live) session() *sql.Conn {
	l.Helper()
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.User, cfg.Passwd = "unix", l.server.Socket(), l.server.User(), l.server.Password()
	cfg.MultiStatements = true
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		l.Fatal(err)
	}
	db := sql.OpenDB(connector)
	l.Cleanup(func() { db.Close() })
	conn, err := db.Conn(l.Context())
	if err != nil {
		l.Fatal(err)
	}
	l.exec(conn, "create database if not exists scan")
	l.exec(conn, "use scan")
	return conn
}

func (l live) exec(conn *sql.Conn, text string, args ...any) {
	l.Helper()
	if _, err := conn.ExecContext(l.Context(), text, args...); err != nil {
		l.Fatalf("%s: %v", text, err)
	}
}

// query returns the first result's rows, fields joined by "|".
func (l live) query(conn *sql.Conn, text string) ([]string, error) {
	rows, err := conn.QueryContext(l.Context(), text)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	var out []string
	for rows.Next() {
		fields, into := make([]sql.NullString, len(names)), make([]any, len(names))
		for i := range fields {
			into[i] = &fields[i]
		}
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		text := make([]string, len(names))
		for i, f := range fields {
			text[i] = f.String
			if !f.Valid {
				text[i] = "NULL"
			}
		}
		out = append(out, strings.Join(text, "|"))
	}
	return out, rows.Err()
}

func (l live) must(conn *sql.Conn, text string) []string {
	l.Helper()
	rows, err := l.query(conn, text)
	if err != nil {
		l.Fatalf("%s: %v", text, err)
	}
	return rows
}

// errorCode returns the server's error number, or 0.
func (l live) errorCode(err error) uint16 {
	l.Helper()
	var e *mysql.MySQLError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.Number
	}
	l.Fatal(err)
	return 0
}

const (
	errParse           = 1064
	errUnknownFunction = 1305 // FUNCTION does not exist
)

// checkFunctions calls every function of the lists on the server, with white space before "("
// and without. The server must not look for a stored function of that name, except where the
// scanner says that it would.
func (l live) checkFunctions() {
	conn := l.session()
	stored := func(text string) bool { return l.errorCode(second(l.query(conn, text))) == errUnknownFunction }
	known := 0
	for name := range strings.FieldsSeq(harmlessEverywhere + harmlessNewer + harmlessMySQL + harmlessMariaDB) {
		k := lookup(name)
		if !k.isFunction(l.mode) {
			continue
		}
		known++
		if !l.mode.MariaDB && l.mode.Version >= 90600 && slices.Contains(strings.Fields("md5 sha sha1"), name) {
			continue // see functions.go
		}
		// Some names mean a stored function if the arguments do not fit.
		if stored("select "+name+"()") && stored("select "+name+"(1, 2)") {
			l.Errorf("%s() is no built-in function", name)
		}
		if !k.has(classTight) && stored("select "+name+" ()") && stored("select "+name+" (1, 2)") {
			l.Errorf("%s () is no built-in function", name)
		}
	}
	if known < 300 {
		l.Errorf("only %d functions", known)
	}
	for _, s := range specialFunctions {
		for name := range strings.FieldsSeq(s.names) {
			if lookup(name).isFunction(l.mode) && stored("select "+name+"(1, 2, 3, 4, 5, 6, 7)") {
				l.Errorf("%s is no built-in function", name)
			}
		}
	}
	if !l.mode.MariaDB {
		return
	}
	// The server's own list must have no function that the scanner does not know.
	late := strings.Fields("add_months to_char sformat kdf json_schema_valid format_pico_time")
	for _, name := range l.must(conn, "select lower(function) from information_schema.sql_functions") {
		if !lookup(name).isFunction(l.mode) && !slices.Contains(late, name) {
			l.Errorf("%s is not known", name)
		}
	}
}

func second[A, B any](_ A, b B) B { return b }

// lookup returns the keyword of a word in lower case.
func lookup(word string) keyword {
	lex := newLexer(word, Mode{})
	return lex.next().kw
}

// checkWords compares the classes of words with the server's grammar.
func (l live) checkWords() {
	conn := l.session()
	for word := range strings.FieldsSeq(expressionWords) {
		if code := l.errorCode(second(l.query(conn, "select "+word+" from (select 1) t"))); code == 1054 {
			l.Errorf("%s may be a column", word)
		}
		_, err := conn.ExecContext(l.Context(), "create temporary table w ("+word+" int)")
		if l.errorCode(err) != errParse {
			l.Errorf("%s may be a column: %v", word, err)
			l.exec(conn, "drop temporary table w")
		}
	}
	for word := range strings.FieldsSeq(grammarWords) {
		if l.errorCode(second(l.query(conn, "select "+word+"(1)"))) == errUnknownFunction {
			l.Errorf("%s may be a stored function", word)
		}
	}
}

// checkCommits compares EffImplicitCommit with what happens to a row that an open transaction
// has written.
func (l live) checkCommits() {
	// These commit on some servers, or in some states.
	mayCommit := []string{
		"unlock tables", "flush tables with read lock", "load index into cache d", "cache index d in default", "change master to master_delay = 0",
	}
	conn := l.session()
	l.exec(conn, "create or replace view v as select 1")
	l.exec(conn, "create table if not exists c (a int) engine=innodb")
	l.exec(conn, "create table if not exists d (a int) engine=innodb")
	for _, text := range []string{
		"select 1", "set @a = 1", "set names utf8mb4", "set session sql_mode = default", "create temporary table tt (a int)", "drop temporary table tt",
		"prepare p from 'select 1'", "execute p", "deallocate prepare p", "do 1", "use scan", "show tables", "savepoint s", "release savepoint s", "explain select 1",
		"handler d open", "handler d close", "checksum table d", "help 'x'", "select get_lock('a', 0)", "insert into d values (1)", "kill query 99999999", "set autocommit = 1",
		"create table x1 (a int)", "alter table x1 add b int", "truncate x1", "rename table x1 to x2", "drop table x2", "create or replace view v as select 2",
		"begin", "start transaction", "lock tables c read, d read", "unlock tables", "analyze table d", "analyze local table d", "optimize table d", "check table d", "repair table d",
		"flush tables", "flush status", "create user if not exists u1", "grant select on *.* to u1", "set default role none to u1", "drop user u1", "create procedure p1() select 1",
		"drop procedure p1", "drop table if exists x9", "create index i on d (a)", "drop index i on d", "set password = ''", "flush tables with read lock", "load index into cache d",
		"cache index d in default", "install soname 'nothing'", "purge binary logs to 'x'", "set role none", "commit", "set transaction read write", "table d", "values row(1)", "describe d",
		"analyze format=json select 1", "set statement max_statement_time = 1 for select 1", "reset query cache", "change master to master_delay = 0",
	} {
		l.exec(conn, "unlock tables")
		l.exec(conn, "delete from c")
		l.exec(conn, "set autocommit = 1")
		if strings.HasPrefix(text, "set autocommit") {
			l.exec(conn, "set autocommit = 0")
		} else {
			l.exec(conn, "begin")
		}
		l.exec(conn, "insert into c values (1)")
		_, err := conn.ExecContext(l.Context(), text)
		if code := l.errorCode(err); code == errParse {
			continue // only known to the other engine
		}
		l.exec(conn, "rollback")
		l.exec(conn, "unlock tables")
		committed := l.must(conn, "select count(*) from c")[0] != "0"
		claimed := Scan(text, l.mode).Effects.Has(EffImplicitCommit | EffTxEnd)
		if committed && !claimed {
			l.Errorf("%s commits (%v); the scanner says %v", text, err, Scan(text, l.mode).Effects)
		}
		if claimed && !committed && err == nil && !slices.Contains(mayCommit, text) {
			l.Errorf("%s does not commit; the scanner says %v", text, Scan(text, l.mode).Effects)
		}
	}
}

// checkCounts compares the number of statements with the number of results that the server
// sends.
func (l live) checkCounts() {
	client := l.server.Client()
	if client == "" {
		l.Skip("the server's command line client is not installed")
	}
	result := regexp.MustCompile(`(?m)^(?:Query OK|Empty set|[0-9]+ rows? in set)`)
	for _, text := range []string{
		"select 1", "select 1;", "select 1;;", "-- x", "# x", "/* x */", "select 1; -- x", "select 1; /* x */", "select 1; select 2", "select ';'; select 2;",
		"/*! select 1 */; select 2", "select 1 /*!99999 ; select 2 */", "select 1 # ; select 2\n; select 3", "do 1; do 2; do 3", "select 1; /*!99999 x */",
		"create or replace view v as select 1; drop view v",
		"create procedure p() begin declare continue handler for not found begin end; x: loop leave x; end loop; while 0 do do 1; end while; repeat set @a = if(1, 2, 3); until 1 end repeat; " +
			"if (1) then do 1; elseif 2 then do 2; else case when 1 then do if(1, 2, 3); else do repeat('a', 3); end case; end if; end; select 4; drop procedure p",
		"create procedure p() select case when 1 then if(1, 2, 3) else repeat('a', 2) end; drop procedure p; select 1",
		"create procedure p(a int) comment 'x' if a then select 1; end if; drop procedure p; select 1",
		"begin; do 1; commit", "begin not atomic do 1; end; select 2", "if 1 then do 1; end if; select 2", "select 1;; select 2", "; select 1", "select 1; select 2 from; select 3",
	} {
		cmd := exec.CommandContext(l.Context(), client, "--no-defaults", "-u", l.server.User(), "-S", l.server.Socket(), "-vvv", "--comments", "--delimiter=//", "--batch", "scan")
		cmd.Stdin = strings.NewReader(text + "\n//\n")
		out, err := cmd.CombinedOutput()
		scanned := Scan(text, Mode{Multi: true, MariaDB: l.mode.MariaDB, Version: l.mode.Version})
		if err != nil {
			if !scanned.Effects.Has(EffUnknown) && !strings.Contains(text, "from;") {
				l.Errorf("%q: the server refuses it: %s", text, out)
			}
			continue
		}
		if got := len(result.FindAll(out, -1)); got != scanned.Count {
			l.Errorf("%q: %d statements, the server gives %d results\n%s", text, scanned.Count, got, out)
		}
	}
}

// checkInserts stores the same rows one by one and by one statement.
func (l live) checkInserts() {
	conn := l.session()
	l.exec(conn, "create table i (id int auto_increment primary key, a varchar(100), b decimal(10, 2) default 9, c datetime, d json)")
	const read = "select * from i order by id"
	compare := func(label string, alone, together func()) {
		l.exec(conn, "truncate i")
		alone()
		want := l.must(conn, read)
		l.exec(conn, "truncate i")
		together()
		if diff := cmp.Diff(want, l.must(conn, read)); diff != "" {
			l.Errorf("%s (-one by one +together)\n%s", label, diff)
		}
	}
	for _, c := range []struct {
		text string
		rows [][]any
	}{
		{"insert into i (a, b) values (?, ?)", [][]any{{"x", 1.5}, {"y", nil}, {"it's", -1}}},
		{"insert into i (b, a) value (?, ?)", [][]any{{1, "x"}, {2, "y"}}},
		{"insert i (a, b) values (?, 7)", [][]any{{"x"}, {"y"}}},
		{"insert into `i` (a, b, c) values ('see /* ttl:5 */ ? here', ?, '2020-01-01')", [][]any{{1}, {2}}},
		{"/* batch */ insert into scan.i values (default, concat(upper(?), _utf8mb4'b'), round(? / 3, 2), date '2020-01-01' + interval ? day, null) -- x\n;", [][]any{{"x", 1, 1}, {"y", 2, 2}}},
	} {
		shape, ok := Insert(c.text, l.mode)
		if !ok {
			l.Errorf("%s: refused", c.text)
			continue
		}
		compare(c.text, func() {
			for _, row := range c.rows {
				l.exec(conn, c.text, row...)
			}
		}, func() { l.exec(conn, string(shape.AppendMulti(nil, len(c.rows))), slices.Concat(c.rows...)...) })
	}

	rows := []string{"(null, 'x', '2.50', '2020-01-01', '[1]')", "(default, \"it's\", 3, default, null)", "(7, 'a\\'b', -4, now() - now(), json_array(1, 'x'))"}
	var texts []string
	var together string
	for _, row := range rows {
		text := "insert into i values " + row
		shape, ok := Insert(text, l.mode)
		if !ok {
			l.Fatalf("%s: refused", text)
		}
		texts = append(texts, text)
		if together == "" {
			together = shape.Prefix + shape.Tuple
		} else {
			together += "," + shape.Tuple
		}
	}
	l.exec(conn, "set sql_mode = ''")
	compare(together, func() {
		for _, text := range texts {
			l.exec(conn, text)
		}
	}, func() { l.exec(conn, together) })
}

// closing ends a session, so that its state does not stay.
func (l live) closing(conn *sql.Conn) {
	l.Helper()
	if err := conn.Close(); err != nil && !errors.Is(err, sql.ErrConnDone) {
		l.Fatal(err)
	}
}

// checkState compares the effects that pin a session with the state that the server shows for
// it.
func (l live) checkState() {
	other := l.session()
	for _, c := range []struct {
		text    string
		effect  Effect
		witness string // true in the session that ran text, false in any other
	}{
		{"create temporary table tmp (a int)", EffTemp, "exists (select 1 from tmp) or 1"},
		{"create temporary table tmp select 1 as a", EffTemp, "exists (select 1 from tmp)"},
		{"set @x = 5", EffUserVarWrite, "@x = 5"},
		{"select @x := 5", EffUserVarWrite, "@x = 5"},
		{"select 5 into @x", EffUserVarWrite, "@x = 5"},
		{"do @`x` := 5", EffUserVarWrite, "@x = 5"},
		{"select get_lock('l', 0)", EffLock, "is_used_lock('l') = connection_id()"},
		{"do last_insert_id(77)", EffSetLastID, "last_insert_id() = 77"},
		{"set last_insert_id = 78", EffSetLastID, "last_insert_id() = 78"},
		{"set sort_buffer_size = 123456", EffSet, "@@sort_buffer_size < 130000"},
		{"/*!40101 set sort_buffer_size = 123456 */", EffSet, "@@sort_buffer_size < 130000"},
		{"select sql_calc_found_rows 1 union select 2 limit 1", EffCalcFoundRows, "found_rows() = 2"},
	} {
		conn := l.session()
		if !Scan(c.text, l.mode).Effects.Has(c.effect) {
			l.Errorf("%s: %v", c.text, Scan(c.text, l.mode).Effects)
		}
		if _, err := l.query(conn, c.text); err != nil {
			l.Fatalf("%s: %v", c.text, err)
		}
		here, err := l.query(conn, "select "+c.witness)
		if err != nil || here[0] != "1" {
			l.Errorf("%s, in its session: %v %v", c.text, here, err)
		}
		if there, err := l.query(other, "select "+c.witness); err == nil && there[0] == "1" {
			l.Errorf("%s, in another session: %v", c.text, there)
		}
		l.closing(conn)
	}
}

// checkSettings runs a SET, then replays what the scanner made of it on a clean
// session, and compares all variables of the session.
func (l live) checkSettings() {
	const read = "show session variables where variable_name not in ('timestamp', 'pseudo_thread_id', 'rand_seed1', 'rand_seed2', 'last_insert_id', 'identity', 'statement_id', 'last_gtid')"
	for _, text := range []string{
		"set sort_buffer_size = 100000", "set @@sort_buffer_size := 100000, @@session.max_error_count = 7", "set local max_error_count = 7, sql_notes = off",
		"set time_zone = '+01:00'", "set time_zone = `SYSTEM`, sql_mode = ANSI", "set session sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'", "set sql_mode = default",
		"set names latin1", "set names 'utf8mb4' collate utf8mb4_bin", "set character set latin1", "set charset 'utf8mb4'", "set names default, autocommit = 0",
		"set character_set_results = null", "set session transaction isolation level read committed, read only", "set foreign_key_checks = 0, unique_checks=OFF",
		"set global max_error_count = 64, session max_error_count = 9", "set @a = 1, max_error_count = 11", "/*!40101 SET SQL_MODE='NO_AUTO_VALUE_ON_ZERO' */;",
		"set tx_isolation = 'SERIALIZABLE'", "set transaction_isolation = 'SERIALIZABLE'", "set global max_error_count = 64, max_length_for_sort_data = 1024",
	} {
		s := Scan(text, l.mode)
		if s.Effects.Has(EffSetUnknown | EffUnknown) {
			l.Errorf("%s: %v", text, s.Effects)
			continue
		}
		before, conn, clean := l.session(), l.session(), l.session()
		if _, err := conn.ExecContext(l.Context(), text); err != nil {
			if code := l.errorCode(err); code != 1193 {
				l.Errorf("%s: %v", text, err)
			}
			continue // a variable of the other family
		}
		for a := range s.Set.All() {
			if replay := l.replay(a); replay != "" {
				l.exec(clean, replay)
			}
		}
		want := l.must(conn, read)
		if diff := cmp.Diff(want, l.must(clean, read)); diff != "" {
			l.Errorf("%s (-server +replayed)\n%s", text, diff)
		}
		if changed := !slices.Equal(want, l.must(before, read)); changed != s.Effects.Has(EffSet) && !strings.Contains(text, "default") {
			l.Errorf("%s: changed %t, %v", text, changed, s.Effects)
		}
		for _, c := range []*sql.Conn{before, conn, clean} {
			l.closing(c)
		}
	}
}

// replay returns a statement that repeats the assignment, or "" if it is not for the session.
func (l live) replay(a Assignment) string {
	text, ok := a.Text(l.mode)
	if !ok || a.Scope != ScopeSession {
		return ""
	}
	if a.Kind == ValueString {
		text = "'" + strings.NewReplacer("'", "''", `\`, `\\`).Replace(text) + "'"
	}
	switch {
	case a.Name == "names" && a.Collate != "":
		return "set names " + text + " collate " + a.Collate
	case a.Name == "names" || a.Name == "character set":
		return "set " + a.Name + " " + text
	case a.Name == "transaction_isolation":
		return "set session transaction isolation level " + strings.ReplaceAll(strings.Trim(text, "'"), "-", " ")
	case a.Name == "transaction_read_only":
		return fmt.Sprintf("set session transaction read %s", map[bool]string{true: "only", false: "write"}[strings.EqualFold(text, "on") || text == "1"])
	}
	return "set session " + a.Name + " = " + text
}
