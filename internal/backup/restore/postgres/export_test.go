package postgres

import "time"

// HoldLock is what a session of a restore begins with.
var HoldLock = holdLock

// SetJournalPatience changes how long a restore waits for a journal that is locked, until undo.
func SetJournalPatience(d time.Duration) (undo func()) {
	was := journalPatience
	journalPatience = d
	return func() { journalPatience = was }
}
