// Package bouncer runs the PostgreSQL side of the proxy by a configuration of
// PgBouncer's: its databases, its rules about logins, its console and the lines of its
// log. Package postgres shares the connections; package pgbouncer reads the file.
//
//	authenticator.go     who may log in (postgres.Authenticator), and where connections go
//	login.go    one login, step by step
//	lookup.go   auth_query
//	tunnel.go   replication connections
//	console.go  commands; tables.go what SHOW answers
//	options.go  the configuration in weir's terms
//	log.go      the log
package bouncer
