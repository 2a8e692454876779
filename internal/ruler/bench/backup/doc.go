// Package backupbench is the scenario of `weir bench backup`: weir beside the
// tools that people use, on one server and the same data, in turn.
//
// Three things are measured, from the inside out: buffers, compressions and
// copies in this process; whole backups and restores, each a program of its own,
// weir among them; and memory at two sizes. Time runs from the start of the
// program until its archive is on the disk; where a program does not flush it, the
// benchmark does, and counts that. Processor time is that of the program with all
// its children, and beside it that of the server. Memory is what the program and its children held
// together, by looking while they ran.
//
// Every archive is read back by its tool's own check, and every restored
// database is compared with its source, rows by their sums and indexes and
// constraints by their number: a round that differs ends the run.
package backupbench
