// Package bouncer runs the PostgreSQL side of the proxy by a configuration of
// PgBouncer's: its databases, its rules about who may come in, its console and the
// lines of its log. What shares connections is package postgres; package pgbouncer has
// read the file.
//
//	door.go     who comes in (postgres.Door), and where connections go
//	login.go    one login, step by step
//	lookup.go   auth_query
//	tunnel.go   replication connections
//	console.go  commands; tables.go what SHOW answers
//	options.go  the configuration in weir's terms
//	log.go      the log
package bouncer
