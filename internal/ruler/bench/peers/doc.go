// Package peers compares weir with the tools in use today: direct connections, PgBouncer,
// pg_dump, mydumper, etcd, an outbox of SKIP LOCKED workers. Each [Row] is a goal of the design
// with the two sides that it compares; one command measures all of them and writes one page, the
// source of the tables in the README.
//
// Each part is a command that can also be run by itself; package reference runs them. The two
// sides of a row are compared only if they were measured in turn in one run.
package peers
