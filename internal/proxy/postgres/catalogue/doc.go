// Package catalogue finds out what a statement may do to its session through the objects that
// it names: functions, triggers, views, defaults, domains, operators and event triggers. It
// knows no connection and no client.
//
// A Reader asks a database's catalogue: it gives the queries, and takes their rows. The result
// is an Index, the names whose use may change a session, which judges statements. Known keeps
// what was read of servers for other loops. Whether an index still holds is seen by comparing
// its stamp (StampSQL).
//
// docs/design/006-proven-sharing.md says why an index is complete.
package catalogue
