//go:build !linux

package measure

import "time"

func sharpenTimer() {}

func preciseSleep(d time.Duration) { time.Sleep(d) }
