// Package backupdata generates databases to back up: tables of realistic rows, from a
// seed and up to a size.
//
// The cost of a backup depends on its data. The filler of pgbench shrinks 35 times and hides
// what compression costs; random bytes do not shrink and hide what it gains. So rows here are
// made as applications make them: words by their frequency in language, names, sums of money
// that add up, times that move on, JSON whose keys repeat, files with a header and a body that
// is compressed already. A test holds each shape to the ratio that gzip reaches on data of its
// kind.
//
// The same seed and size give the same bytes on every machine. The package opens
// no connection: Table.Reader yields the text that COPY and LOAD DATA read.
package backupdata
