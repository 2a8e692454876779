package core

import (
	"sync"
	"time"

	"github.com/weirdb/weir/internal/measure"
)

// LoginTimes are the durations of successful logins, by database. Safe for concurrent use.
type LoginTimes struct {
	mu sync.Mutex
	by map[string]*measure.Hist // guarded by mu
}

const (
	// maxLoginDatabases bounds the number of databases that are counted separately.
	maxLoginDatabases = 1000
	otherDatabases    = "other"
)

// Add records a login to a database.
func (l *LoginTimes) Add(database string, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.by[database]
	if h == nil {
		if l.by == nil {
			l.by = make(map[string]*measure.Hist)
		}
		if len(l.by) >= maxLoginDatabases {
			database = otherDatabases
		}
		if h = l.by[database]; h == nil {
			h = new(measure.Hist)
			l.by[database] = h
		}
	}
	h.Record(int64(took))
}

// copies returns copies of the histograms.
func (l *LoginTimes) copies() map[string]*measure.Hist {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[string]*measure.Hist, len(l.by))
	for database, h := range l.by {
		out[database] = h.Clone()
	}
	return out
}
