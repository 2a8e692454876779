// Package peers holds weir against what people run today: direct connections,
// PgBouncer, pg_dump, mydumper, etcd, the customary outbox. Each [Row] is a goal of the
// design with the two sides that it compares; one command measures them all and writes
// one page, from which the tables of the README are taken.
//
// The parts are commands that anyone can run by themselves; package reference conducts
// them. A row whose two sides were not measured in turn in one run is not compared.
package peers
