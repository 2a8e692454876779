package mysql

import "time"

// observation is the server's process list and then its transactions, at one time. The package
// comment explains the order.
type observation struct {
	at time.Time // before the first query
	// executing has the sessions that execute a statement and, if the server shows it,
	// the statement's number.
	executing map[int64]string
	// writing has the sessions of read-write transactions, by transaction number;
	// 0 for prepared ones, which have no session.
	writing map[uint64]int64
}

// grace is how long a statement that has taken a number may take to start a read-write
// transaction: innodb_max_purge_lag_delay is at most 10 s.
const grace = 15 * time.Second

// mark is the set of statements and read-write transactions at one time. The statements are
// known at once, the transactions only from a later observation whose copy of them is newer.
// It does no I/O.
type mark struct {
	at         time.Time
	statements map[int64]string // by session; they may still start a transaction
	writers    map[uint64]struct{}
	complete   bool // writers is set
}

func newMark(at time.Time, executing map[int64]string) *mark {
	return &mark{at: at, statements: executing, writers: map[uint64]struct{}{}}
}

// observe updates the mark by a later observation, and reports whether it is settled.
// Transactions with numbers from limit on began after the mark; 0 means that the limit is
// not known.
func (m *mark) observe(k *observation, limit uint64) bool {
	for id := range m.writers {
		if _, there := k.writing[id]; !there {
			delete(m.writers, id)
		}
	}
	if !m.complete {
		m.complete = true
		for id := range k.writing {
			if limit == 0 || id < limit {
				m.writers[id] = struct{}{}
			}
		}
	}
	m.updateStatements(k)
	return len(m.statements) == 0 && len(m.writers) == 0
}

// updateStatements drops statements that have ended, and moves those that started a transaction
// to writers.
func (m *mark) updateStatements(k *observation) {
	if len(m.statements) == 0 {
		return
	}
	owned := make(map[int64]uint64, len(k.writing))
	for id, session := range k.writing {
		owned[session] = id
	}
	for session, statement := range m.statements {
		writer, writes := owned[session]
		now, executes := k.executing[session]
		switch {
		case writes:
			m.writers[writer] = struct{}{}
		case executes && now == statement && k.at.Sub(m.at) < grace:
			continue
		}
		delete(m.statements, session)
		// Its transaction may have been prepared and have no session now.
		for id, session := range k.writing {
			if session == 0 {
				m.writers[id] = struct{}{}
			}
		}
	}
}
