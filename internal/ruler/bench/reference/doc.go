// Package reference compares the five reports that weir was built to answer with weir's own
// measurements: the reports' tables with their order and columns, with this machine's figures
// in additional columns, and a verdict on each of their claims.
//
// A [Document] is one of the five as data: what it published, and where in a run the
// counterpart of each figure is. A [Run] starts the benchmarks that measure them, each as a
// separate process, and updates a page for every document after each, so that an interrupted
// run can be read and resumed.
//
// Published figures were not measured here, and none is ever compared with one of ours:
// machines differ. A claim is read as a relation between two of our own figures, or as a limit
// that one of them must keep, and the report states this reading. A claim that was not measured
// is not refuted.
package reference
