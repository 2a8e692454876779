// Package pgload puts the load of package load into PostgreSQL's protocol, for
// the server itself and for proxies that speak it.
//
// The encoder is its own: the four messages of one prepared execution into a
// reused buffer, where internal/wire/pgwire has to serve them all.
package pgload
