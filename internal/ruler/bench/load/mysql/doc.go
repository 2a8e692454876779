// Package myload puts the load of package load into the protocol of MySQL and
// MariaDB, for the servers themselves and for proxies that speak it.
//
// Beyond what an operation's answer says of its success, it checks what a proxy
// that gathers statements could get wrong: packets numbered from one, one row
// affected, an insert id that the table then has for that very row, no warning,
// no note about several records, autocommit and no transaction in the status,
// and of a failing statement the error that names its own values.
//
// The decoder of answers is its own, not internal/wire/mywire's: the proxy uses that,
// and a mistake made twice alike would not be noticed.
package myload
