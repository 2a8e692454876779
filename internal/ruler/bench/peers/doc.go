// Package peers compares weir with what people run today: direct connections,
// PgBouncer, pg_dump, mydumper, etcd, the customary outbox. Each [Row] is a goal of the
// design with the two sides that it compares; one command measures them all and writes
// one page, from which the tables of the README are taken.
//
// Each part is a command that can also be run by itself; package reference runs
// them. A row whose two sides were not measured in turn in one run is not compared.
package peers
