// Package bench runs experiments and says what their figures are worth.
//
// An Experiment has two or more sides, such as a direct connection, weir with a window of 10 ms
// and weir without a window. Run alternates between them round by round, so that a drift of the
// machine affects all sides alike, and compares them pair by pair. The Result holds every
// sample, the environment, summaries with confidence intervals, comparisons with a verdict, and
// findings that rules compute from the numbers. "Cannot tell" is a verdict.
//
// The package starts nothing and imports no product. The scenarios of a product are in a
// package below this one, next to the load generators. The result format has optional parts for
// messages (Outbox), key-value stores (KV) and moved data (Transfer), and the rules about them
// apply to any program that does such work.
package bench
