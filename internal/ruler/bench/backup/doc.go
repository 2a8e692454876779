// Package backupbench is the scenario of `weir bench backup`: weir beside the
// tools that people use, on one server and the same data, in turn.
//
// Three things are measured, from the inside out: buffers, compressions and
// copies in this process; whole backups and restores, each a program of its own,
// weir among them; and memory at two sizes. Time is that of the program from its
// start until its archive is on the disk, which those that do not flush it are
// charged for. Processor time is told apart: of the program with all its
// children, and of the server. Memory is what the program and its children held
// together, by looking while they ran.
//
// Every archive is read back by its tool's own check, and every restored
// database is compared with its source, rows by their sums and indexes and
// constraints by their number: a round that differs ends the run.
package backupbench
