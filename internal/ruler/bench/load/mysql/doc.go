// Package myload implements the load of package load in the protocol of MySQL and MariaDB, for
// servers and for proxies that speak it.
//
// Besides the success of an operation, it checks what a proxy that groups statements could get
// wrong: packets numbered from one, one affected row, an insert id that matches the row in the
// table, no warning, no note about several records, autocommit and no transaction in the
// status, and for a failing statement an error that names its own values.
//
// It has its own decoder of answers, instead of internal/wire/mywire's, which the proxy uses: a
// mistake in a shared decoder would go unnoticed.
package myload
