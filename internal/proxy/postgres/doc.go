// Package postgres is the PostgreSQL side of the proxy: sessions of clients over
// few shared connections to the server, reads pipelined across clients, writes
// that ask for it in groups. docs/ARCHITECTURE.md has the map of its files.
package postgres
