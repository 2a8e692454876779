package mysql

import "time"

// look is what one look at the server shows: first at its sessions, then at its
// transactions. See the package's comment for why in this order.
type observation struct {
	at time.Time // before the first of the two
	// executing holds the sessions that execute a statement and, where the server
	// tells, which one.
	executing map[int64]string
	// writing holds the read-write transactions by number, with their sessions;
	// 0: prepared ones that belong to none.
	writing map[uint64]int64
}

// grace is how long a statement that has taken a number may take to get into a
// read-write transaction: innodb_max_purge_lag_delay is 10 s at most.
const grace = 15 * time.Second

// mark is a moment: what was executing then is in statements at once, which
// read-write transactions there were is learned later, from a look whose copy of
// them is newer. It is pure.
type mark struct {
	at         time.Time
	statements map[int64]string // sessions that may yet show a transaction
	writers    map[uint64]struct{}
	complete   bool // writers is filled
}

func newMark(at time.Time, executing map[int64]string) *mark {
	return &mark{at: at, statements: executing, writers: map[uint64]struct{}{}}
}

// observe learns from a look that began after the mark was taken, and reports
// whether the mark is settled. Transactions with numbers from limit on began
// after the mark; 0: that is not known.
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

// follow looks at what has become of the statements.
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
		// Its transaction may have been prepared, and so belong to no session now.
		for id, session := range k.writing {
			if session == 0 {
				m.writers[id] = struct{}{}
			}
		}
	}
}
