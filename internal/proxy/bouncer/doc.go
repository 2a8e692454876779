// Package bouncer runs the PostgreSQL side of the proxy from a PgBouncer configuration,
// with its databases, login rules, console and log format. Package postgres shares the
// connections; package pgbouncer reads the file.
//
//	bouncer.go        the process: signals, RELOAD, SET
//	authenticator.go  who may log in (postgres.Authenticator), and where connections go
//	login.go          one login, step by step
//	lookup.go         auth_query
//	tunnel.go         replication connections
//	console.go        commands; tables.go and stats.go: SHOW
//	options.go        the configuration as options of weir; limits.go: limits of pools
//	listen.go         listening sockets; tls.go: certificates
//	log.go            the log
package bouncer
