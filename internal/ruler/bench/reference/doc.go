// Package reference sets the five reports that weir was built to answer beside what it
// measures itself: their tables in their own order and columns, with this machine's
// figures in columns of their own, and a verdict on each of their claims.
//
// A [Document] is one of the five as data: what it published, and where in a run
// the counterpart of each figure is. A [Run] starts the benchmarks that measure them,
// each as a process of its own, and keeps a page for every document up to date
// while it does, so that an interrupted run can be read and resumed.
//
// Published figures were not measured here, and none is ever compared with one of ours: machines
// differ. A claim is read as a relation between two of our own figures, or as a limit that one
// has to keep, and the reading is in the report. A claim that was not measured is not refuted.
package reference
