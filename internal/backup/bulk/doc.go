// Package bulk has what backups and restores of every engine share: which tables are
// selected (Filter), how much of the machine they may use (Profile), the order of jobs
// and which of them may run at once (Graph), and how far they are (Progress). It opens no
// connection and knows no SQL; packages below it, such as bulk/postgres, know one engine
// each.
//
// It lies below packages backup and restore, which never import each other.
package bulk
