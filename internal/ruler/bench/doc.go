// Package bench runs experiments, and computes which differences between their figures are
// larger than the noise.
//
// An Experiment has two or more sides, such as a direct connection, weir with a window of 10 ms
// and weir without a window. Run alternates between them round by round, so that a drift of the
// machine affects all sides alike, and compares them pair by pair. The Result holds every
// sample, the environment, summaries with confidence intervals, comparisons with a verdict, and
// findings that rules compute from the numbers. "Cannot tell" is a verdict.
//
// The package starts nothing and imports no product. The benchmark of a product is a
// package below this one, next to the load generators.
//
// A sample may have parts about its subject: messages, moved data, a key-value store. The core
// does not know what is in them. A Subject brings their type, their metrics and their rules,
// which apply to any program that does such work. Those of weir's benchmarks are in the packages
// below subject. A reader of results passes the subjects that it knows; other parts are kept as
// they are.
package bench
