// Package measure has the measuring tools of weir: a clock, a latency histogram and its
// recorder, the kernel's counters for processes, a description of the environment of a
// measurement, and the division of a CPU profile into categories.
//
// It measures and describes; it does not judge. Package bench has statistics over repetitions,
// verdicts and findings, and package report has charts.
//
// Three conventions hold throughout. A duration is an int64 of nanoseconds unless its name says
// seconds. CPU time is in seconds of one core, so a process that keeps two cores busy for a
// second has used 2. A counter that the machine does not offer is marked as unknown: it is
// never reported as zero.
package measure
