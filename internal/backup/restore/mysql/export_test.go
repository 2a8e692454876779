package mysql

import "time"

// Hold is what a session of a restore begins with.
var Hold = hold

// SetJournalPatience changes how long a restore waits for a journal that is locked, until undo.
func SetJournalPatience(d time.Duration) (undo func()) {
	was := journalPatience
	journalPatience = d
	return func() { journalPatience = was }
}
