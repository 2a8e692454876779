package replica

import (
	"fmt"
	"time"
)

// A watchdog notices that the disk hangs: a write or flush neither ends nor
// fails. It counts ticks instead of time, because a process that was stopped has
// not waited for its disk.
type watchdog struct {
	patience int    // ticks
	step     uint64 // of the disk when it was last checked
	ticks    int    // for how long the disk has been busy with that step
}

// hangs checks the disk, once per tick, and reports whether it hangs.
func (w *watchdog) hangs(step uint64) bool {
	if step != w.step || step%2 == 0 {
		w.step, w.ticks = step, 0
		return false
	}
	w.ticks++
	return w.ticks >= w.patience
}

// leastDiskTimeout is how long a busy disk may always take, whatever the election
// timeout.
const leastDiskTimeout = time.Second

// watchDisk tells the core, before a tick, whether the disk hangs.
func (l *loop) watchDisk() (hangs bool) {
	hangs = l.watchdog.hangs(l.disk.steps.Load())
	if hangs == l.hangs {
		return hangs
	}
	l.hangs = hangs
	if hangs {
		l.cfg.Log.Error("the disk hangs: this replica does not lead until it works again", "waited", l.cfg.DiskTimeout.String(), "data", l.cfg.Dir)
	} else {
		l.cfg.Log.Info("the disk works again")
	}
	return hangs
}

// hung is why a replica whose disk hangs is not ready.
func hung(after time.Duration) error {
	return fmt.Errorf("the disk hangs: it has not ended a write for %v or more (a hung volume or controller, or a file system that is frozen); "+
		"this replica does not lead and acknowledges nothing until it does", after)
}
