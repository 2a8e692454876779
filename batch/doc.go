// Package batch is self-tuning group commit: it gathers small items that
// arrive from many sides and hands them in groups to something for which one
// crossing is expensive, such as a commit, a system call or a network round
// trip.
//
// Every group commit has a wait that somebody must choose, and the usual
// choice, a fixed window, is wrong nearly everywhere: with no load it is pure
// delay, and c waiting clients can never do more than c divided by the window.
// This package therefore waits for nothing by default. A lane is one crossing
// in flight. A lane that is free takes what is waiting, at once; while all
// lanes are busy, items gather. The size of a group is the load's own doing:
//
//	time      0        1        2        3        4        5        6
//	arrives   a  b c d      e f g h i                  j
//	lane 1    [a      ][bcd    ][efghi   ]             [j      ]
//	waits     a 0, b-d until the lane is free, e-i too; j 0 again
//
// One question remains, how many lanes: two lanes overlap what one cannot, and
// two lanes on one disk only split the groups in half. A controller answers it
// by measurement; see [Config.MaxLanes] and the comment of controller for its
// rule and source. Nobody has to know the cost of a crossing in advance.
//
// Two layers. [Queue] is the pure core: no goroutine, no clock, no lock; an
// event loop feeds it the time. [Batcher] is the shell for everybody else:
// goroutines submit, a function flushes, keys are kept apart and results come
// back one per item. A fixed window ([Config.Window]) is kept so that anyone
// may compare; package sim next door does so on a virtual clock.
//
// What this package does not do: it does not retry, it does not persist, and
// it does not reorder within a key.
package batch
