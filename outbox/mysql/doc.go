// Package mysql keeps an outbox in MySQL (8.0 and later) or MariaDB (10.11 and
// later). It implements [outbox.Store] and [outbox.Partitioner] over
// database/sql and go-sql-driver.
//
// A store must connect to the server that producers write to. A replica has the
// rows, but not the transactions that may still commit more of them. The same
// holds for one node of several that accept writes (Galera, group replication
// with several primaries): if another node commits a message's transaction late,
// only the sweep finds the message, and delivers it out of order. Let producers
// and relays use one node.
//
// # Which rows are still to come
//
// A row takes its number before its transaction commits, and in any order, so a
// reader finds gaps: numbers whose rows may appear later or never.
// Mark and Settled of [outbox.Lease] determine when a gap is dead. InnoDB does not tell
// which transaction took a number, so the proof is based on what sessions do:
//
//	session   --[ INSERT: number taken ]--[ transaction is read-write ]--...--[ end ]--
//	seen in       PROCESSLIST (executing)        INNODB_TRX (by its id)          neither
//
// InnoDB takes the number in ha_innobase::write_row and starts the transaction, or
// makes it a read-write one, in row_insert_for_mysql, right after it. There is no
// wait for a lock between the two; the one pause that exists is
// innodb_max_purge_lag_delay, of at most 10 s and off by default. Numbers that a
// statement takes in advance, for its other rows, are taken with the first. So at
// any moment a session that has taken a number is executing a statement, or owns a
// read-write transaction, or has ended its transaction. A mark therefore consists
// of two queries, in this order: first of the process list, then of INNODB_TRX. A
// session that is between the two states at the first query is executing; if it has
// moved on by the second, its transaction is there. (The other order would miss a
// statement that ends between the queries and leaves its transaction open.)
//
// A mark is settled when every read-write transaction that it saw has gone from
// INNODB_TRX, and every statement that it saw has ended or shown its transaction,
// which is then waited for as well. A statement that does neither (a long SELECT,
// a replication thread) is ignored once it was seen without a read-write
// transaction more than 15 s later: the pause above has ended by then. Prepared
// XA transactions belong to no session; those that appear while a statement is
// waited for are waited for, too.
//
// INNODB_TRX is a copy that the server renews only when it has not been read for
// 100 ms. A query proves that its copy is new by finding itself in it: it runs in
// a transaction of its own, and the copy must contain the text of its statement,
// which includes a number that is never used again. MySQL 9 fails to
// show INNODB_TRX while a session executes a statement whose text utf8mb3 does not
// have; the report of InnoDB's monitor is read instead then.
//
// Both queries need the privilege PROCESS. Without it a mark is settled when it is
// older than Options.MaxTxAge: a transaction that stays open for longer may
// commit rows that only the relay's sweep finds. Store.Describe says which of
// the two holds.
package mysql
