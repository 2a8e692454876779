// Package measure is the ruler that every part of weir is measured with: a
// clock, a latency histogram and its recorder, the counters the kernel keeps of
// a process, the environment a figure was taken in, and the split of a CPU
// profile into categories.
//
// It measures and describes; it does not judge. Statistics over repeats,
// verdicts and findings are package bench, and pictures are package report.
//
// Three conventions hold throughout. A duration is an int64 of nanoseconds
// unless its name says seconds. CPU time is seconds of one core, so a process
// that keeps two cores busy for a second has used 2. A counter that the machine
// does not offer is marked as unknown: it is never reported as zero.
package measure
