//go:build !linux

package batch

import "time"

// preciseBelow is zero where the runtime's timer is all there is: windows
// below about a millisecond may be late by as much.
const preciseBelow time.Duration = 0

func ownThread() {}

func preciseSleep(d time.Duration) { time.Sleep(d) }
