// Package bench runs experiments and says what their figures are worth.
//
// An Experiment has two or more sides, such as direct, weir with a window of
// 10 ms and weir without one. Run alternates them round by round, so that what
// drifts on the machine hits all sides alike, and compares them pair by pair.
// The Result holds every sample, the environment, summaries with confidence
// intervals, comparisons with a verdict, and findings that rules compute from
// the numbers. "Cannot tell" is a verdict.
//
// The core knows nothing of databases or of weir's parts. A scenario is a file
// of its own that builds an Experiment, and the load generators are packages
// below this one.
package bench
