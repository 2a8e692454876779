// Package pgbouncer reads the configuration of PgBouncer 1.25: pgbouncer.ini with the
// files that it includes, connection strings of databases, auth_hba_file and
// auth_ident_file. It maps each setting to weir, and refuses a setting that weir
// would have to ignore if a client or an attacker could tell the difference.
//
// It opens no connection and starts nothing; package bouncer runs a proxy from the
// configuration.
package pgbouncer
