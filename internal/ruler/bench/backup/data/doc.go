// Package backupdata generates databases to back up: tables of realistic rows, from a seed and
// up to a size.
//
// The cost of a backup depends on its data. The filler of pgbench shrinks 35 times and hides
// the cost of compression; random bytes do not shrink and hide its gain. So these rows are like
// those of applications: words by their frequency in language, names, sums of money that add
// up, increasing times, JSON with repeating keys, files with a header and a compressed body. A
// test checks that gzip compresses each shape as well as data of its kind.
//
// The same seed and size give the same bytes on every machine. The package opens no connection:
// Table.Reader returns the text that COPY and LOAD DATA read.
package backupdata
