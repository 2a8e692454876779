package binlog

import (
	"bytes"
	"fmt"
	"time"
)

// Step is what an event means for the transaction that it belongs to.
type Step byte

// The steps.
const (
	StepNone     Step = iota // within a transaction, or between two
	StepCommit               // the event ends a transaction, which is committed; it may be all of it
	StepRollback             // the event ends a transaction, which is rolled back
	StepPrepare              // the event ends an XA transaction, which is prepared only
	StepCut                  // the transaction before the event has no end: the server crashed
)

// Tracker follows the transactions of a log. It does no I/O. The zero value
// stands at no position, and knows of no GTIDs. One goroutine may use a
// Tracker at a time.
type Tracker struct {
	// Executed holds the GTIDs that were seen or skipped before; nil if that is
	// unknown, until the beginning of a file says so. The tracker adds to it.
	Executed *GTIDSet
	// Unplaced says that the log begins after Executed, wherever in a file that
	// is: the server leaves out events, and where it would have to begin again
	// is not known before the first transaction or file has ended. The tracker
	// clears it then.
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
	announced                     // a GTID event was seen, of MySQL or of a statement by itself
	begun                         // a GTID event of MariaDB was seen, which opens a transaction
	inside                        // the transaction has events
)

// Position is where to go on after all transactions that have ended: behind the
// last one, or behind what came after it. It is zero while Unplaced.
func (t *Tracker) Position() Position { return t.pos }

// GTID is that of the transaction that has ended last; zero if it has none.
func (t *Tracker) GTID() GTID { return t.ended }

// CommitTime is when the transaction that has ended last was committed: to the
// microsecond on MySQL 8, else to the second, as the clock of the server whose
// log it is had it.
func (t *Tracker) CommitTime() time.Time { return t.committed }

// InTransaction reports whether the last event belongs to a transaction that has
// not ended.
func (t *Tracker) InTransaction() bool { return t.state != between }

// Current is the GTID of the transaction that is open; zero if it has none.
func (t *Tracker) Current() GTID {
	if t.state == between {
		return GTID{}
	}
	return t.info.gtid
}

// CurrentTime is when the transaction that is open was committed, as far as it
// is known at its beginning: of MySQL 8 as CommitTime, else when its GTID was
// given out, to the second. It is zero if no transaction is open, or if it has no
// GTID event. Who replays a log up to a moment stops here, before the
// transaction's first event.
func (t *Tracker) CurrentTime() time.Time {
	if t.state == between {
		return time.Time{}
	}
	return t.info.begun()
}

// Observe takes the next event of the log.
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

// cut drops the transaction that is open before e.
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

// control takes an event about the log itself.
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

// query takes a statement, which may be one that begins or ends a transaction.
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
		step := t.cut(e) // only a log without GTIDs has it so
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
	return StepCommit, nil // a statement by itself
}

// verb is what a statement in the log means for its transaction.
type verb byte

const (
	verbOther    verb = iota
	verbBegin         // BEGIN, XA START
	verbCommit        // COMMIT
	verbRollback      // ROLLBACK; not ROLLBACK TO
	verbCreate        // MySQL 8: CREATE TABLE … START TRANSACTION, whose rows follow
	verbMark          // SAVEPOINT, XA END: of no interest to readers
)

// verbOf looks at statements as servers write them themselves.
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
