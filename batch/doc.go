// Package batch is self-tuning group commit: it collects small items from
// concurrent callers and flushes them in groups across a boundary where each
// crossing is expensive, such as a commit, a system call or a network round
// trip.
//
// Most implementations of group commit wait for a fixed window, which is rarely right:
// without load it only adds delay, and c waiting clients never reach more than c divided
// by the window. This package therefore has no window by default. A lane is one crossing
// in flight. A free lane takes all waiting items at once; while all lanes are busy,
// items gather. (There is one exception: if measurement shows that it helps, a free lane
// waits for clients that were just answered, at most half a flush;
// [Config.NoHold] forbids it.) So the load alone decides the size of groups:
//
//	time      0        1        2        3        4        5        6
//	arrives   a  b c d      e f g h i                  j
//	lane 1    [a      ][bcd    ][efghi   ]             [j      ]
//	waits     a 0, b-d until the lane is free, e-i too; j 0 again
//
// The number of lanes matters: two lanes overlap what one cannot, and two lanes on one
// disk only split the groups in half. A controller finds it by measurement, and so the
// cost of a crossing need not be known; see [Config.MaxLanes] and the comment of
// controller for its rule and source.
//
// Two layers. [Queue] is the pure core: no goroutine, no clock, no lock; an event loop
// feeds it the time. [Batcher] is the shell for concurrent callers: goroutines submit, a
// function flushes, keys are kept apart and results come back one per item.
// [Config.Window] sets a fixed window, for comparison; the tests in batch/sim
// compare policies on a virtual clock.
//
// This package does not retry, it does not persist, and it does not reorder within a key.
package batch
