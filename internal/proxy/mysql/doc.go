// Package mysql is the MySQL and MariaDB side of the proxy: sessions of clients
// over few shared connections to the server, reads pipelined across clients,
// writes that ask for it in groups.
//
// It differs from the PostgreSQL side in what the protocols differ in. A client
// has one command under way at a time. The server tells of the session's state
// itself: of the transaction in the status flags of each OK, of settings and the
// database in the session tracking that weir switches on for all its
// connections. An ERR tells nothing, so where it may have ended a transaction,
// weir asks.
package mysql
