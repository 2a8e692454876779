// Package backupbench is the benchmark of weir backup: weir compared with common tools,
// on one server and the same data, in turn.
//
// It measures three things: buffers, compressions and copies in this process; whole backups and
// restores, each a separate program, including weir; and memory at two sizes. Time runs from
// the start of the program until its archive is on disk; if a program does not flush it, the
// benchmark does, within the measured time. CPU time is that of the program with all its
// children, and separately that of the server. Memory is the peak of the program and its
// children together, sampled while they run.
//
// Every archive is read back by its tool's own check, and every restored database is compared
// with its source: rows by checksums, indexes and constraints by their number. A difference
// ends the run.
package backupbench
