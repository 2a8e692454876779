package binlog

import (
	"bytes"
	"fmt"
	"time"
)

// Step is the effect of an event on its transaction.
type Step byte

// The steps.
const (
	StepNone     Step = iota // no effect: within a transaction, or between two
	StepCommit               // the event ends a committed transaction, which may consist of this event alone
	StepRollback             // the event ends a transaction that was rolled back
	StepPrepare              // the event ends an XA transaction that is only prepared
	StepCut                  // the transaction before the event has no end: the server crashed
)

// Tracker follows the transactions of a log. It does no I/O. The zero value has no position and
// no GTIDs. It is used by one goroutine at a time.
type Tracker struct {
	// Executed holds the GTIDs that were seen or skipped before; nil if unknown, until the
	// beginning of a file provides it. The tracker adds to it.
	Executed *GTIDSet
	// Unplaced says that the log begins after Executed, at an unknown position: the server
	// skips events, and the position to continue at is not known before the first transaction
	// or file has ended. Then the tracker clears it.
	Unplaced bool

	pos       Position
	state     trackerState
	info      gtidInfo
	ended     GTID
	committed time.Time
}

type trackerState byte

const (
	between   trackerState = iota // no transaction is open
	announced                     // a GTID event of MySQL, or of a standalone statement, was seen
	begun                         // a GTID event of MariaDB was seen, which opens a transaction
	inside                        // the transaction has events
)

// Position returns where to continue after all transactions that have ended: after the last
// one, or after later events outside of transactions. It is zero while Unplaced.
func (t *Tracker) Position() Position { return t.pos }

// GTID returns the GTID of the last transaction that has ended; zero if it has none.
func (t *Tracker) GTID() GTID { return t.ended }

// CommitTime returns when the last transaction that has ended was committed: to the microsecond
// with MySQL 8, otherwise to the second, by the clock of the server that wrote the log.
func (t *Tracker) CommitTime() time.Time { return t.committed }

// InTransaction reports whether the last event belongs to a transaction that has not ended.
func (t *Tracker) InTransaction() bool { return t.state != between }

// Current returns the GTID of the open transaction; zero if it has none.
func (t *Tracker) Current() GTID {
	if t.state == between {
		return GTID{}
	}
	return t.info.gtid
}

// CurrentTime returns when the open transaction was committed, as far as that is known at its
// beginning: with MySQL 8 as CommitTime, otherwise when its GTID was assigned, to the second.
// It is zero if no transaction is open, or if it has no GTID event. A replay up to a point in
// time checks it before the transaction's first event.
func (t *Tracker) CurrentTime() time.Time {
	if t.state == between {
		return time.Time{}
	}
	return t.info.begun()
}

// Observe processes the next event of the log.
func (t *Tracker) Observe(e *Event) (Step, error) {
	if isGTID(e.Type) {
		return t.announce(e)
	}
	step := StepNone
	switch e.Type {
	case FormatDescriptionEvent, RotateEvent, StopEvent, PreviousGTIDsEvent, MariaGTIDListEvent:
		if t.state != between {
			step = t.cut(e)
		}
		return step, t.control(e)
	case XIDEvent, TransactionPayloadEvent:
		step = StepCommit
	case XAPrepareEvent:
		step = xaStep(e.Body())
	case QueryEvent, QueryCompressedEvent, ExecuteLoadQueryEvent:
		var err error
		if step, err = t.query(e); err != nil {
			return StepNone, err
		}
	case TableMapEvent:
		t.state = inside
	default:
		if t.state == between {
			t.advance(e)
		}
	}
	switch step {
	case StepCommit, StepRollback, StepPrepare:
		t.end(e)
	}
	return step, nil
}

// cut ends the open transaction, which e interrupts.
func (t *Tracker) cut(e *Event) Step {
	t.ended, t.committed = t.info.gtid, time.Time{}
	t.state, t.info = between, gtidInfo{}
	if e.End > 0 && !t.Unplaced {
		t.pos = Position{e.File, e.Start()}
	}
	return StepCut
}

// xaStep reads whether an XA transaction was committed in one phase.
func xaStep(body []byte) Step {
	if len(body) > 0 && body[0] != 0 {
		return StepCommit
	}
	return StepPrepare
}

func (t *Tracker) announce(e *Event) (Step, error) {
	step := StepNone
	if t.state != between {
		step = t.cut(e)
	}
	var err error
	if t.info, err = parseGTID(e); err != nil {
		return StepNone, err
	}
	t.state = announced
	if t.info.maria && !t.info.standalone {
		t.state = begun
	}
	return step, nil
}

// control processes an event about the log itself.
func (t *Tracker) control(e *Event) error {
	t.advance(e)
	var err error
	switch e.Type {
	case RotateEvent:
		var to Position
		if to, err = parseRotate(e.Body()); e.Stored() {
			t.Unplaced = false
		}
		if !t.Unplaced {
			t.pos = to
		}
	case PreviousGTIDsEvent:
		if t.Executed == nil {
			t.Executed, err = parseMySQLSet(e.Body())
		}
	case MariaGTIDListEvent:
		if t.Executed == nil {
			t.Executed, err = parseMariaList(e.Body())
		}
	}
	return err
}

func (t *Tracker) advance(e *Event) {
	if e.End > 0 && !t.Unplaced {
		t.pos = Position{e.File, e.End}
	}
}

func (t *Tracker) end(e *Event) {
	t.state, t.Unplaced = between, false
	t.advance(e)
	t.ended, t.committed = t.info.gtid, t.info.committed
	if t.committed.IsZero() {
		t.committed = time.Unix(int64(e.Timestamp), 0)
	}
	if t.Executed != nil {
		t.Executed.Add(t.ended)
	}
	t.info = gtidInfo{}
}

// query processes a statement, which may begin or end a transaction.
func (t *Tracker) query(e *Event) (Step, error) {
	_, sql, err := queryText(e)
	if err != nil {
		return StepNone, fmt.Errorf("event at %s:%d: %w", e.File, e.Start(), err)
	}
	verb := verbOf(sql)
	if e.Type == ExecuteLoadQueryEvent {
		verb = verbOther
	}
	switch {
	case verb == verbBegin && t.state == inside:
		step := t.cut(e) // only in logs without GTIDs
		t.state = inside
		return step, nil
	case verb == verbBegin, verb == verbCreate && t.state != begun:
		t.state = inside
		return StepNone, nil
	case t.state == inside || t.state == begun:
		t.state = inside
		switch verb {
		case verbCommit:
			return StepCommit, nil
		case verbRollback:
			return StepRollback, nil
		}
		return StepNone, nil
	}
	return StepCommit, nil // a standalone statement
}

// verb is the effect of a statement in the log on its transaction.
type verb byte

const (
	verbOther    verb = iota
	verbBegin         // BEGIN, XA START
	verbCommit        // COMMIT
	verbRollback      // ROLLBACK; not ROLLBACK TO
	verbCreate        // MySQL 8: CREATE TABLE … START TRANSACTION, whose rows follow
	verbMark          // SAVEPOINT, XA END: no effect
)

// verbOf recognizes statements in the form in which servers write them.
func verbOf(sql []byte) verb {
	switch {
	case bytes.EqualFold(sql, []byte("BEGIN")), hasPrefixFold(sql, "XA START "):
		return verbBegin
	case bytes.EqualFold(sql, []byte("COMMIT")):
		return verbCommit
	case bytes.EqualFold(sql, []byte("ROLLBACK")):
		return verbRollback
	case hasPrefixFold(sql, "SAVEPOINT "), hasPrefixFold(sql, "XA END "):
		return verbMark
	case hasPrefixFold(sql, "CREATE TABLE ") && bytes.HasSuffix(sql, []byte(" START TRANSACTION")):
		return verbCreate
	}
	return verbOther
}

func hasPrefixFold(s []byte, prefix string) bool {
	return len(s) >= len(prefix) && bytes.EqualFold(s[:len(prefix)], []byte(prefix))
}
