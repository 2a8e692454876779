// Package catalogue is what weir knows of the names of a MySQL or MariaDB server, as one account
// sees them: which views, routines, triggers and column defaults have effects on the session
// that uses them, and which tables are fit for groups of writes. A statement's text does not
// show that.
//
// The package is pure: it has the queries, reads the rows of their answers, and judges texts. It
// opens no connection and keeps no time; the parent package runs the queries, and decides for
// how long their answers hold.
//
//	Reader   takes the rows of Steps, in order            reader.go
//	         ... and what another user sees of triggers   hidden_triggers.go
//	Index    what a Reader has found; judges texts        index.go
//	Table    the facts of one table                       tables.go
package catalogue
