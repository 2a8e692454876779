// Package bulk is what a backup and a restore have in common, whatever the
// engine: which tables are meant (Filter), how much of the machine may be used
// (Profile), in which order things are done and what may run side by side
// (Graph), and how far it is (Progress). It opens no connection and knows no
// SQL; packages below it, such as bulk/postgres, know one engine each.
//
// It lies below packages backup and restore, which never import each other.
package bulk
