// Package pgload implements the load of package load in PostgreSQL's protocol, for the server
// itself and for proxies that speak it.
//
// It has its own encoder, which writes the four messages of one prepared execution into a
// reused buffer; internal/wire/pgwire is more general.
package pgload
