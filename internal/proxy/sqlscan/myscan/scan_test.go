package myscan

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The modes that the tables use most.
var (
	multi     = Mode{Multi: true}
	ansi      = Mode{AnsiQuotes: true}
	noEscapes = Mode{NoBackslashEscapes: true}
	onMariaDB = Mode{MariaDB: true, Version: 101119}
	onMySQL   = Mode{Version: 90704}
)

func TestScanQueries(t *testing.T) {
	checkScan(t, Mode{}, []scanCase{
		{"", VerbEmpty, 0},
		{" ; \n;", VerbEmpty, 0},
		{"-- nothing\n # at\n /* all */", VerbEmpty, 0},
		{"select 1", VerbSelect, 0},
		{"SeLeCt * from t where a = ? and b in (1, 2) order by c limit 10;", VerbSelect, 0},
		{"(select 1) union all (select 2)", VerbSelect, 0},
		{"((values (1)))", VerbValues, 0},
		{"values row(1), row(2)", VerbValues, 0},
		{"table t order by a", VerbTable, 0},
		{"insert into t (a, b) values (?, ?)", VerbInsert, EffWrites},
		{"insert t(a) values (lower(?)) on duplicate key update b = values(b)", VerbInsert, EffWrites},
		{"insert ignore into `s`.`t` partition (p0) (a) select f from x", VerbInsert, EffWrites},
		{"insert into t (a) select f(1)", VerbInsert, EffWrites | EffUnknownFunc},
		{"insert into t set a = f(1)", VerbInsert, EffWrites | EffUnknownFunc},
		{"insert into t values (1) as new(a) on duplicate key update a = new.a", VerbInsert, EffWrites},
		{"replace into t(a) values (1)", VerbReplace, EffWrites},
		{"update t set a = 1 where b = ? order by c limit 1", VerbUpdate, EffWrites},
		{"delete t from t join u using (id)", VerbDelete, EffWrites},
		{"selec 1", VerbOther, EffUnknown},
		{"select.x", VerbOther, EffUnknown},
		{"`select` 1", VerbOther, EffUnknown},
		{"42", VerbOther, EffUnknown},
		{"* select 1", VerbOther, EffUnknown},
		{"select 1 where 'a", VerbSelect, EffUnknown},
		{"select (1", VerbSelect, EffUnknown},
		{"select 1)", VerbSelect, EffUnknown},
		{"select \x00", VerbSelect, EffUnknown},

		// WITH: the main verb.
		{"with a as (select 1) select * from a", VerbSelect, 0},
		{"with recursive a (x, y) as (select 1, 2), b (z) as (select 1) select * from a, b", VerbSelect, 0},
		{"with a as (select 1) update t join a set x = 1", VerbUpdate, EffWrites},
		{"with a as (select 1) delete from t", VerbDelete, EffWrites},
		{"with a as (select 1) insert into t(b) select * from a", VerbInsert, EffWrites},
		{"with a as (select 1) (select * from a)", VerbSelect, 0},
		{"with recursive a as (select 1) cycle n restrict select * from a", VerbSelect, 0},
		{"select (with a(x) as (select 1) select * from a)", VerbSelect, 0},
		{"select a.update, t.delete from t", VerbSelect, 0},
		{"select case when a then 1 else left(b, 2) end from t left join u on (a = b)", VerbSelect, 0},
		{"select count(*), max(a), group_concat(distinct b order by c separator ', ') from t group by a with rollup", VerbSelect, 0},
		{"select match (a, b) against ('x' in boolean mode), a in (1), exists (select 1), not (a), cast(a as char(10)), convert(a, decimal(10, 2)) from t", VerbSelect, 0},
		{"select row(1, 2) = (1, 2), if(a, 1, 2), interval(1, 2), date_add(now(), interval 1 day), current_timestamp, current_timestamp(6), truncate(1, 2)", VerbSelect, 0},
		{"select sum(a) over (partition by b order by c rows between 1 preceding and current row) from t use index (i) join (select 1) d(x) using (x)", VerbSelect, 0},
		{"select 1 from dual where a regexp ('x') and b rlike 'y' or (c div 2) mod 3", VerbSelect, 0},

		// Functions that are not known.
		{"select f(1)", VerbSelect, EffUnknownFunc},
		{"select s.lower('A')", VerbSelect, EffUnknownFunc},
		{"select `lower`('A')", VerbSelect, EffUnknownFunc},
		{"select lower ('A')", VerbSelect, 0},
		{"select count (*)", VerbSelect, EffUnknownFunc},
		{"select now /* x */ ()", VerbSelect, EffUnknownFunc},
		{"select a from t where b = (select f(1))", VerbSelect, EffUnknownFunc},
		{"select nvl(1, 2), is_uuid(a)", VerbSelect, EffUnknownFunc},
	})
	checkScan(t, onMariaDB, []scanCase{
		{"select nvl(a, 1), json_detailed(b) from t", VerbSelect, 0},
		{"select is_uuid(a)", VerbSelect, EffUnknownFunc},
		{"select rank() over (order by a), json_value(b, '$.c') from t", VerbSelect, 0},
	})
	checkScan(t, onMySQL, []scanCase{
		{"select is_uuid(a), any_value(b), grouping(c) from t", VerbSelect, 0},
		{"select nvl(1, 2)", VerbSelect, EffUnknownFunc},
		{"select * from json_table('[]', '$[*]' columns (id for ordinality, a varchar(10) path '$.a', nested path '$.b' columns (c int path '$'))) j", VerbSelect, 0},
		{"select 1 member of ('[1]')", VerbSelect, 0},
		{"select * from t, lateral (select t.a) x", VerbSelect, 0},
		{"select lateral((select 1))", VerbSelect, EffUnknownFunc},
	})
	checkScan(t, Mode{Version: 50744}, []scanCase{
		{"select is_uuid(a)", VerbSelect, EffUnknownFunc},
		{"select rank() over ()", VerbSelect, EffUnknownFunc},
	})
}

func TestScanTransactions(t *testing.T) {
	checkScan(t, Mode{}, []scanCase{
		{"begin", VerbBegin, EffTxBegin | EffImplicitCommit},
		{"begin work;", VerbBegin, EffTxBegin | EffImplicitCommit},
		{"START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY", VerbBegin, EffTxBegin | EffImplicitCommit},
		{"commit", VerbCommit, EffTxEnd},
		{"commit work and no chain no release", VerbCommit, EffTxEnd},
		{"commit and chain", VerbCommit, EffTxEnd | EffTxBegin},
		{"rollback release", VerbRollback, EffTxEnd | EffQuit},
		{"rollback and chain", VerbRollback, EffTxEnd | EffTxBegin},
		{"rollback to a", VerbRollbackTo, EffSavepoint},
		{"rollback work to savepoint `a b`", VerbRollbackTo, EffSavepoint},
		{"savepoint a", VerbSavepoint, EffSavepoint},
		{"release savepoint a", VerbRelease, EffSavepoint},
		{"xa start 'x'", VerbXA, EffXA},
		{"set transaction read only", VerbSet, EffNextTx},
		{"set transaction isolation level read committed, read write", VerbSet, EffNextTx},
		{"set @@transaction_isolation = 'SERIALIZABLE'", VerbSet, EffNextTx},
		{"set session transaction isolation level repeatable read", VerbSet, EffSet},
		{"set global transaction read write", VerbSet, EffSetGlobal},
		{"set transaction_isolation = 'SERIALIZABLE'", VerbSet, EffSet},
		{"set autocommit = 0", VerbSet, EffSet},
		{"set @@sql_mode = ''", VerbSet, EffSet | EffSetBare},
		{"set statement a = 1 for set b = 2", VerbSet, EffStatementSet | EffSet | EffSetUnknown | EffUnknown},
		{"set autocommit = 1", VerbSet, EffSet | EffImplicitCommit},
		{"select 1 from t for update", VerbSelect, EffLockRows},
		{"select 1 from t for share of t skip locked", VerbSelect, EffLockRows},
		{"select 1 from t lock in share mode", VerbSelect, EffLockRows},
		{"select * from (select 1 from t for update) x", VerbSelect, EffLockRows},
		{"create table t (a int)", VerbDDL, EffDDL | EffImplicitCommit},
		{"create table t (a int, b varchar(10) default (f(1)), key (a))", VerbDDL, EffDDL | EffImplicitCommit},
		{"create table t as select f(1) as a", VerbDDL, EffDDL | EffImplicitCommit | EffWrites | EffUnknownFunc},
		{"create or replace view v as select f(1)", VerbDDL, EffDDL | EffImplicitCommit},
		{"alter table t add c int", VerbDDL, EffDDL | EffImplicitCommit},
		{"drop table t", VerbDDL, EffDDL | EffImplicitCommit | EffRelease},
		{"truncate t", VerbDDL, EffDDL | EffImplicitCommit | EffWrites | EffRelease},
		{"rename table a to b", VerbDDL, EffDDL | EffImplicitCommit},
		{"grant select (a) on t to 'u'@'h'", VerbDDL, EffDDL | EffImplicitCommit},
		{"analyze table t", VerbMaintain, EffAdmin | EffImplicitCommit},
		{"optimize local table t", VerbMaintain, EffAdmin | EffImplicitCommit},
		{"checksum table t", VerbMaintain, EffAdmin},
		{"load index into cache t", VerbMaintain, EffAdmin | EffImplicitCommit},
	})
}

func TestScanSessionState(t *testing.T) {
	checkScan(t, Mode{}, []scanCase{
		{"create temporary table t (a int)", VerbDDL, EffTemp},
		{"create or replace temporary table t select 1", VerbDDL, EffTemp | EffWrites},
		{"drop temporary table t", VerbDDL, EffRelease},
		{"drop temporary tables if exists t, u", VerbDDL, EffRelease},
		{"select @x", VerbSelect, EffUserVarRead},
		{"select @`x y`, @'x', @\"x\"", VerbSelect, EffUserVarRead},
		{"select @x := 1", VerbSelect, EffUserVarWrite},
		{"select @x := @x + 1", VerbSelect, EffUserVarRead | EffUserVarWrite},
		{"select 1, 2 into @a, @b", VerbSelect, EffUserVarWrite},
		{"select 1 into @a from t where b in (1, @c)", VerbSelect, EffUserVarWrite | EffUserVarRead},
		{"set @x = 1", VerbSet, EffUserVarWrite},
		{"set @x := @y, @z = f(1)", VerbSet, EffUserVarWrite | EffUserVarRead | EffUnknownFunc},
		{"select get_lock('a', 1)", VerbSelect, EffLock},
		{"select release_lock('a')", VerbSelect, EffRelease},
		{"do release_lock('a'), sleep(1)", VerbDo, EffRelease | EffSleep},
		{"select is_used_lock('a'), is_free_lock('b')", VerbSelect, EffSessionRead},
		{"lock tables t write, u as v read", VerbLock, EffTableLock | EffImplicitCommit},
		{"lock table t write", VerbLock, EffTableLock | EffImplicitCommit},
		{"lock instance for backup", VerbLock, EffTableLock},
		{"unlock tables", VerbUnlock, EffRelease | EffImplicitCommit},
		{"unlock /* instance */ table", VerbUnlock, EffRelease | EffImplicitCommit},
		{"unlock instance", VerbUnlock, EffRelease},
		{"unlock instance /* tables */", VerbUnlock, EffRelease},
		{"backup stage start", VerbLock, EffTableLock},
		{"backup stage end", VerbLock, EffTableLock | EffRelease},
		{"backup lock t", VerbLock, EffTableLock},
		{"backup unlock", VerbUnlock, EffRelease},
		{"flush tables with read lock", VerbAdmin, EffAdmin | EffImplicitCommit | EffTableLock},
		{"flush tables t, u for export", VerbAdmin, EffAdmin | EffImplicitCommit | EffTableLock},
		{"flush privileges", VerbAdmin, EffAdmin | EffImplicitCommit},
		{"prepare p from 'select 1'", VerbPrepare, EffPrepare},
		{"prepare p from @sql", VerbPrepare, EffPrepare | EffUserVarRead},
		{"execute p using @a, @b", VerbExecute, EffPrepare | EffUnknownFunc | EffUserVarRead},
		{"execute immediate 'select 1'", VerbExecute, EffUnknownFunc},
		{"execute immediate", VerbExecute, EffPrepare | EffUnknownFunc},
		{"deallocate prepare p", VerbDeallocate, EffRelease},
		{"drop prepare p", VerbDeallocate, EffRelease},
		{"select last_insert_id()", VerbSelect, EffLastID},
		{"select last_insert_id( /* x */ )", VerbSelect, EffLastID},
		{"update t set id = last_insert_id(id + 1)", VerbUpdate, EffWrites | EffSetLastID},
		{"insert into t values (last_insert_id())", VerbInsert, EffWrites | EffLastID},
		{"select @@last_insert_id, @@session.identity", VerbSelect, EffLastID | EffSysVar},
		{"set last_insert_id = 5", VerbSet, EffSet | EffSetUnknown | EffSetLastID},
		{"set insert_id = 5", VerbSet, EffSet | EffSetUnknown},
		{"select found_rows()", VerbSelect, EffDiag},
		{"select row_count()", VerbSelect, EffDiag},
		{"select @@warning_count, @@`error_count`", VerbSelect, EffDiag | EffSysVar},
		{"show warnings limit 1", VerbShow, EffDiag},
		{"show count(*) errors", VerbShow, EffDiag},
		{"get diagnostics @n = number", VerbDiagnose, EffDiag | EffUserVarRead | EffUserVarWrite},
		{"select sql_calc_found_rows a from t limit 1", VerbSelect, EffCalcFoundRows},
		{"select connection_id()", VerbSelect, EffSessionRead},
		{"select * from information_schema.processlist", VerbSelect, EffSessionRead},
		{"select * from `information_schema`.`PROCESSLIST`", VerbSelect, EffSessionRead},
		{"select * from performance_schema.threads", VerbSelect, EffSessionRead},
		{"select * from sys.session", VerbSelect, EffSessionRead},
		{"select sys, t.sys from t", VerbSelect, 0},
		{"select @@version, @@global.max_connections", VerbSelect, EffSysVar},
		{"select sleep(1), benchmark(1, 2)", VerbSelect, EffSleep},
		{"select 1 into outfile '/tmp/x' fields terminated by ','", VerbSelect, EffFile | EffWrites},
		{"table t into dumpfile '/tmp/x'", VerbTable, EffFile | EffWrites},
		{"call p(1, @a)", VerbCall, EffUnknownFunc | EffUserVarRead},
		{"handler t open as h", VerbHandler, EffHandler},
		{"handler h read first", VerbHandler, EffHandler},
		{"handler h close", VerbHandler, EffHandler | EffRelease},
		{"load data infile 'x' into table t (a, b)", VerbLoad, EffLoad | EffWrites},
		{"load data local infile 'x' ignore into table t fields terminated by ',' ignore 1 lines (a, @b) set c = f(@b)", VerbLoad, EffLoad | EffWrites | EffLocal | EffUserVarRead | EffUserVarWrite | EffUnknownFunc},
		{"select next value for s", VerbSelect, EffSequence | EffWrites},
		{"select previous value for s", VerbSelect, EffSequenceRead},
		{"select nextval(s)", VerbSelect, EffUnknownFunc},
		{"kill 5", VerbKill, EffAdmin},
		{"shutdown", VerbAdmin, EffAdmin | EffImplicitCommit | EffQuit},
		{"binlog 'x'", VerbAdmin, EffAdmin | EffImplicitCommit | EffUnknownFunc},
		{"use db", VerbUse, EffUse},
		{"help 'x'", VerbHelp, 0},
		{"signal sqlstate '45000'", VerbDiagnose, EffDiag},
		{"set role r", VerbSet, EffRole},
		{"set role default", VerbSet, EffRole},
		{"set default role all to u", VerbSet, EffDDL | EffImplicitCommit},
		{"set password = 'x'", VerbSet, EffDDL | EffImplicitCommit},
		{"set password for 'u'@'h' = password('x')", VerbSet, EffDDL | EffImplicitCommit},
		{"set resource group g", VerbSet, EffSet | EffSetUnknown | EffGroup},
	})
	checkScan(t, onMariaDB, []scanCase{
		{"select nextval(s), lastval(s), setval(s, 1)", VerbSelect, EffSequence | EffWrites | EffSequenceRead},
		{"select release_all_locks()", VerbSelect, EffRelease},
		{"begin not atomic set @a = 1; select f(1); end", VerbCompound, EffTxBegin | EffImplicitCommit | EffUnknown},
		{"set statement max_statement_time = 1, sql_mode = 'x' for select f(1) from t for update", VerbSelect, EffStatementSet | EffUnknownFunc | EffLockRows},
		{"set statement sort_buffer_size = @x for insert into t(a) values (1)", VerbInsert, EffStatementSet | EffUserVarRead | EffWrites},
		{"set statement a = 1 select 1", VerbSet, EffStatementSet | EffUnknown},
		{"if 1 then select 1; end if", VerbCompound, EffUnknown},
	})
}

func TestScanShowAndExplain(t *testing.T) {
	checkScan(t, Mode{}, []scanCase{
		{"show tables", VerbShow, 0},
		{"show create table t", VerbShow, 0},
		{"show full columns from t like 'x%'", VerbShow, 0},
		{"show table status", VerbShow, 0},
		{"show status like 'x'", VerbShow, EffSessionRead},
		{"show session status", VerbShow, EffSessionRead},
		{"show global status", VerbShow, 0},
		{"show variables", VerbShow, EffSysVar | EffSessionRead},
		{"show variables like 'sql_mode'", VerbShow, EffSysVar},
		{"show session variables like '%'", VerbShow, EffSysVar | EffSessionRead},
		{"show variables like 'identity'", VerbShow, EffSysVar | EffLastID},
		{"show global variables", VerbShow, EffSysVar},
		{"show variables where variable_name = 'x'", VerbShow, EffSysVar | EffSessionRead},
		{"show full processlist", VerbShow, EffSessionRead},
		{"show profiles", VerbShow, EffSessionRead},
		{"show explain for 5", VerbShow, EffSessionRead},
		{"SHOW WEIR STATUS;", VerbShow, EffWeirShow},
		{"explain select f(1) from t", VerbExplain, EffUnknownFunc},
		{"explain format=json select 1", VerbExplain, 0},
		{"explain format = tree into @x for database d select 1", VerbExplain, EffUserVarWrite},
		{"explain extended update t set a = 1", VerbExplain, EffWrites},
		{"explain analyze (select 1 for update)", VerbExplain, EffLockRows},
		{"explain with a as (select 1) delete from t", VerbExplain, EffWrites},
		{"explain for connection 5", VerbExplain, EffSessionRead},
		{"describe t a", VerbExplain, 0},
		{"desc `t`", VerbExplain, 0},
		{"analyze format=json select sleep(1)", VerbExplain, EffSleep},
		{"analyze no_write_to_binlog table t", VerbMaintain, EffAdmin | EffImplicitCommit},
	})
}

func TestScanSettings(t *testing.T) {
	checkScan(t, Mode{}, []scanCase{
		{"set names utf8mb4", VerbSet, EffSet},
		{"set character set latin1", VerbSet, EffSet},
		{"set time_zone = '+00:00', sql_mode := default", VerbSet, EffSet},
		{"set @@session.sql_mode = concat(@@sql_mode, ',ANSI')", VerbSet, EffSet | EffSetUnknown | EffSysVar},
		{"set sql_mode = @old", VerbSet, EffSet | EffSetUnknown | EffUserVarRead},
		{"set @old = @@sql_mode", VerbSet, EffUserVarWrite | EffSysVar},
		{"set global max_connections = 5, sort_buffer_size = 6", VerbSet, EffSetGlobal},
		{"set global a = 5, session b = 6", VerbSet, EffSetGlobal | EffSet},
		{"set persist a = 5", VerbSet, EffSetGlobal},
		{"set", VerbSet, EffSet | EffSetUnknown},
		{"set a", VerbSet, EffSet | EffSetUnknown},
		{"set a = 1,", VerbSet, EffSet | EffSetUnknown},
		{"set a = (select f(1))", VerbSet, EffSet | EffSetUnknown | EffUnknownFunc},
		{"set timestamp = current_timestamp", VerbSet, EffSet | EffSetUnknown},
		{"set a = 'x", VerbSet, EffSet | EffUnknown},
	})
	checkScan(t, multi, []scanCase{
		{"set a = 1; set b = 2", VerbSet, EffSet | EffSetUnknown | EffMulti},
		{"use a; select 1", VerbUse, EffUse | EffSetUnknown | EffMulti},
		{"select 1; set a = 1", VerbSelect, EffSet | EffSetUnknown | EffMulti},
	})
}

func TestScanExecutableComments(t *testing.T) {
	const drop = EffDDL | EffImplicitCommit | EffRelease
	checkScan(t, Mode{}, []scanCase{
		{"/*!40101 SET NAMES utf8 */;", VerbSet, EffSet},
		{"/*! drop table t */", VerbDDL, drop},
		{"/*!40101 SET @OLD=@@SQL_MODE, SQL_MODE='x' */", VerbSet, EffUserVarWrite | EffSysVar | EffSet},
		{"select 1 /*! for */ update", VerbSelect, EffLockRows},
		{"select 1 /*!40000 /* for */ for update */", VerbSelect, EffLockRows},
		{"select 1 /* ! for update */", VerbSelect, 0},
		{"select 1 /*!80000 for update */", VerbSelect, EffLockRows | EffUnknown},
		{"select 1 /*M! for update */", VerbSelect, EffLockRows | EffUnknown},
		{"select 1 /*!050000 for update */", VerbSelect, EffLockRows | EffUnknown},
		{"select 1 /*! for update", VerbSelect, EffLockRows | EffUnknown},
		{"select '/*! for update */'", VerbSelect, 0},
		{"select /*+ SET_VAR(sort_buffer_size=1) */ 1", VerbSelect, EffStatementSet},
		{"select /*+ no_index_merge(t) f(1) */ 1", VerbSelect, 0},
	})
	checkScan(t, onMariaDB, []scanCase{
		{"select 1 /*!50699 for update */", VerbSelect, EffLockRows},
		{"select 1 /*!50700 for update */", VerbSelect, 0},
		{"select 1 /*!80000 for update */", VerbSelect, 0},
		{"select 1 /*!100100 for update */", VerbSelect, EffLockRows},
		{"select 1 /*!101120 for update */", VerbSelect, 0},
		{"select 1 /*M! for update */", VerbSelect, EffLockRows},
		{"select 1 /*M!50701 for update */", VerbSelect, EffLockRows},
		{"select 1 /*!99999 /* x */ for update */", VerbSelect, 0},
		{"/*M!999999\\- enable the sandbox mode */", VerbEmpty, 0},
	})
	checkScan(t, onMySQL, []scanCase{
		{"select 1 /*!50701 for update */", VerbSelect, EffLockRows},
		{"select 1 /*!90705 for update */", VerbSelect, 0},
		{"select 1 /*!090704 for update */", VerbSelect, EffLockRows},
		{"select 1 /*!090705 for update */", VerbSelect, 0},
		{"select 1 /*M! for update */", VerbSelect, 0},
		{"select 1 /*M!100000 for /* update */ + 1", VerbSelect, 0},
		{"select 1 /*!090704for update */", VerbSelect, EffLockRows | EffUnknown},
	})
}

func TestScanLiteralsAreNoCode(t *testing.T) {
	for _, c := range []struct {
		sql     string
		mode    Mode
		effects Effect
	}{
		{`select 'for update', "for update", 'it''s for update', "a""for update"`, Mode{}, 0},
		{`select 'a\' for update'`, Mode{}, 0},
		{`select 'a\' for update`, noEscapes, EffLockRows},
		{`select 'a\\' for update`, Mode{}, EffLockRows},
		{`select 'a\\' for update`, noEscapes, EffLockRows},
		{`select "a\" for update"`, Mode{}, 0},
		{`select "a\" for update`, ansi, EffLockRows},
		{"select `a\\` for update", Mode{}, EffLockRows},
		{"select `a``for update`", Mode{}, 0},
		{"select n'for update', x'66', b'01', _utf8mb4'for update', _latin1 'for update', N'it''s'", Mode{}, 0},
		{"select 1 -- for update", Mode{}, 0},
		{"select 1 --for update", Mode{}, EffLockRows},
		{"select 1 --\tfor update", Mode{}, 0},
		{"select 1 # for update", Mode{}, 0},
		{"select 1 # x\rfor update", Mode{}, 0},
		{"select 1 # x\nfor update", Mode{}, EffLockRows},
		{"select 1 /* for update */", Mode{}, 0},
		{"select 1 /* /* */ for update", Mode{}, EffLockRows},
		{"select 1 /*/ for update */", Mode{}, 0},
		{"select 1 --", Mode{}, 0},
		{"select 1 -", Mode{}, 0},
		{"select t.1e5, 1e5for update", Mode{}, EffLockRows},
		{"select 1efor update", Mode{}, 0},
		{"select 0x1for update", Mode{}, 0},
		{"select 0x12 for update", Mode{}, EffLockRows},
		{"select a.for update", Mode{}, 0},
		{"select a. for update", Mode{}, EffLockRows},
		{"select a .for update", Mode{}, 0},
		{"select @for update, @a.for update", Mode{}, EffUserVarRead},
		{"select @@for.update", Mode{}, EffSysVar},
		{"select $for update, forü update", Mode{}, 0},
		{"select x'zz' for update", Mode{}, EffLockRows | EffUnknown},
		{"select x'123'", Mode{}, EffUnknown},
		{"select 1.e", Mode{}, EffUnknown},
		{"select 'ü', `ü`", Mode{Charset: CharsetByte}, 0},
		{"select ü", Mode{Charset: CharsetByte}, EffUnknown},
		{"select @ü", Mode{Charset: CharsetByte}, EffUserVarRead | EffUnknown},
		{"select 'ü'", Mode{Charset: CharsetTrail}, EffUnknown},
		{"select 'u'", Mode{Charset: CharsetTrail}, 0},
	} {
		if got := Scan(c.sql, c.mode); got.Verb != VerbSelect || got.Effects != c.effects {
			t.Errorf("%s (%+v): %v %v, want %v", c.sql, c.mode, got.Verb, got.Effects, c.effects)
		}
	}
}

func TestScanCountsStatements(t *testing.T) {
	for _, c := range []struct {
		sql     string
		mode    Mode
		verb    Verb
		count   int
		effects Effect
	}{
		{"", multi, VerbEmpty, 0, 0},
		{";;", multi, VerbEmpty, 0, 0},
		{"-- x", multi, VerbEmpty, 1, 0},
		{"-- x", Mode{}, VerbEmpty, 1, 0},
		{"select 1;;\n; ", multi, VerbSelect, 1, 0},
		{"select 1; select 2", multi, VerbSelect, 2, EffMulti},
		{"select 1; select 2", Mode{}, VerbSelect, 1, EffUnknown},
		{"select 1; -- x", multi, VerbSelect, 2, EffMulti},
		{"select 1; -- x", Mode{}, VerbSelect, 1, 0},
		{"select 1;; select 2", multi, VerbSelect, 2, EffMulti | EffUnknown},
		{";select 1", multi, VerbOther, 2, EffMulti | EffUnknown},
		{"select ';'; insert into t values (1)", multi, VerbSelect, 2, EffMulti | EffWrites},
		{"create procedure p() begin select 1; if a then select 2; end if; case when b then select 3; end case; end; select 4", multi, VerbDDL, 2, EffMulti | EffDDL | EffImplicitCommit},
		{"create procedure p() select 1; select 4", multi, VerbDDL, 2, EffMulti | EffDDL | EffImplicitCommit},
		{"create definer=`u`@`h` trigger a before insert on t for each row begin declare continue handler for not found begin end; x: loop leave x; end loop; while 1 do set @a = if(1, 2, 3); end while; repeat set b = 1; until 1 end repeat; end", multi, VerbDDL, 1, EffDDL | EffImplicitCommit},
		{"create function f() returns int return case when 1 then 2 else repeat('a', 3) end; drop table if exists t", multi, VerbDDL, 2, EffMulti | EffDDL | EffImplicitCommit | EffRelease},
		{"create procedure p() if (a) then if b then select if(1, 2, 3); else if (c) then select case when 1 then if(1, 2, 3) when 2 then 4 else if(5, 6, 7) end; end if; end if; end if; select 1", multi, VerbDDL, 2, EffMulti | EffDDL | EffImplicitCommit},
		{"create procedure p() begin select 1;", Mode{}, VerbDDL, 1, EffDDL | EffImplicitCommit | EffUnknown},
		{"begin not atomic select 1; end; select 2", multi, VerbCompound, 2, EffMulti | EffTxBegin | EffImplicitCommit | EffUnknown},
		{"/*! select 1; */", multi, VerbSelect, 2, EffMulti | EffUnknown},
		{"begin; insert into t values (1); commit", multi, VerbBegin, 3, EffMulti | EffTxBegin | EffTxEnd | EffImplicitCommit | EffWrites},
	} {
		got := Scan(c.sql, c.mode)
		if got.Verb != c.verb || got.Count != c.count || got.Effects != c.effects {
			t.Errorf("%s (multi %t): %v %d %v, want %v %d %v", c.sql, c.mode.Multi, got.Verb, got.Count, got.Effects, c.verb, c.count, c.effects)
		}
	}
}

func TestScanNames(t *testing.T) {
	for sql, want := range map[string]string{
		"use db": "db", "use `a``b`": "a`b", "USE DB;": "DB", "use /* x */ db": "db",
		"prepare P from 'x'": "P", "execute p": "p", "deallocate prepare p": "p", "drop prepare `p q`": "p q", "execute immediate 'x'": "",
		"savepoint s": "s", "rollback to savepoint s": "s", "rollback to `s`": "s", "release savepoint s": "s",
		"show Pools": "Pools", "show weir status": "weir", "select 1": "", "use": "",
	} {
		if got := Scan(sql, Mode{}).Name; got != want {
			t.Errorf("%s: %q, want %q", sql, got, want)
		}
	}
}

func TestScanKill(t *testing.T) {
	for _, c := range []struct {
		sql  string
		want Kill
	}{
		{"kill 5", Kill{ID: 5, Start: 5, End: 6}},
		{"KILL CONNECTION 123;", Kill{ID: 123, Start: 16, End: 19}},
		{"kill hard query 7", Kill{ID: 7, Start: 16, End: 17, Query: true}},
		{"kill soft connection 7", Kill{ID: 7, Start: 21, End: 22}},
		{"kill query id 7", Kill{ID: 7, Start: 14, End: 15, Query: true, QueryID: true}},
		{"kill query /* x */ 18446744073709551615", Kill{ID: 1<<64 - 1, Start: 19, End: 39, Query: true}},
		{"kill 18446744073709551616", Kill{}},
		{"kill 5 + 1", Kill{}},
		{"kill connection_id()", Kill{}},
		{"kill user 'x'@'h'", Kill{}},
		{"kill ?", Kill{}},
		{"kill 0x5", Kill{}},
		{"select 5", Kill{}},
	} {
		if diff := cmp.Diff(c.want, Scan(c.sql, Mode{}).Kill); diff != "" {
			t.Errorf("%s (-want +got)\n%s", c.sql, diff)
		}
	}
}

func TestReadOnly(t *testing.T) {
	for _, sql := range []string{
		"select 1", "select * from t where a = ?", "values (1)", "table t", "show tables", "select @@sql_mode", "select sleep(1)",
		"with a as (select 1) select * from a", "(select 1)", "select now(), uuid(), rand(), database(), user()",
	} {
		if !Scan(sql, Mode{}).ReadOnly() {
			t.Errorf("%s: not read-only: %v", sql, Scan(sql, Mode{}).Effects)
		}
	}
	for _, sql := range []string{
		"", "insert into t values (1)", "select 1 for update", "select f(1)", "select @x", "select @x := 1", "select last_insert_id()",
		"select found_rows()", "show warnings", "select connection_id()", "select 1 into outfile 'x'", "select get_lock('a', 1)",
		"explain select 1", "set names utf8", "select 1; select 2", "select next value for s", "select sql_calc_found_rows 1", "select 'x",
	} {
		if Scan(sql, multi).ReadOnly() {
			t.Errorf("%s: read-only", sql)
		}
	}
}

type scanCase struct {
	sql     string
	verb    Verb
	effects Effect
}

func checkScan(t *testing.T, mode Mode, cases []scanCase) {
	t.Helper()
	for _, c := range cases {
		got := Scan(c.sql, mode)
		if got.Verb != c.verb || got.Effects != c.effects {
			t.Errorf("%s: %v %v, want %v %v", c.sql, got.Verb, got.Effects, c.verb, c.effects)
		}
	}
}

func TestDeepParentheses(t *testing.T) {
	deep := strings.Repeat("(", 100)
	if got := Scan("select "+deep+"1"+strings.Repeat(")", 100), Mode{}); !got.Effects.Has(EffUnknown) {
		t.Errorf("%v", got.Effects)
	}
	if got := Scan(deep+"select 1", Mode{}); !got.Effects.Has(EffUnknown) {
		t.Errorf("%v", got.Effects)
	}
}

func TestScanAllocatesNothing(t *testing.T) {
	for _, sql := range []string{
		"insert into orders (id, customer, amount) values (1, 'a name', 12.50)", "select abalance from pgbench_accounts where aid = 12345",
		"set names utf8mb4, time_zone = '+00:00', autocommit = 1", "use `db`", "/* batch:10 */ update t set a = @x where b = @@sql_mode", "begin",
	} {
		if n := testing.AllocsPerRun(100, func() { Scan(sql, Mode{}) }); n != 0 {
			t.Errorf("%s: %v allocations", sql, n)
		}
	}
}

func TestNamesOfEffectsAndVerbs(t *testing.T) {
	if 1<<len(effectNames) != effectEnd {
		t.Errorf("%d names for effects below %b", len(effectNames), effectEnd)
	}
	for v := range verbCount {
		if v.String() == "" {
			t.Errorf("verb %d has no name", v)
		}
	}
	if got := (EffTxBegin | EffUnknown).String(); got != "tx-begin|unknown" {
		t.Error(got)
	}
}

func TestLaterStatements(t *testing.T) {
	var got []string
	for st := range Later("SET a = 1; /* c */ SET NAMES latin1 COLLATE latin1_german2_ci, b = ';'; PREPARE `P` FROM 'SELECT 1'; SELECT 1; SET RESOURCE GROUP g;", Mode{Multi: true}) {
		text := st.Verb.String() + " " + st.Name
		for a := range st.Set.All() {
			text += " " + a.Name + "/" + a.Collate
		}
		if st.Effects.Has(EffSet) {
			text += " sets"
		}
		got = append(got, text)
	}
	want := []string{"SET  names/latin1_german2_ci b/ sets", "PREPARE P", "SELECT ", "SET  sets"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for st := range Later("SELECT 1", Mode{Multi: true}) {
		t.Errorf("behind the only one: %v", st)
	}
}
