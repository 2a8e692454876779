package binlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// RecordKind is the kind of a Record.
type RecordKind byte

// The kinds of records. A transaction is Begin, then Changes and Statements in their order,
// then one of Commit, Rollback and Prepare. Transactions never overlap. Those without wanted
// content are skipped.
const (
	Begin     RecordKind = iota + 1
	Changes              // Rows holds the changes of a statement to rows of a table
	Statement            // Query holds a statement: DDL, or one that was not logged as rows
	Commit               // the transaction was committed
	Rollback             // everything since Begin is void, except changes to non-transactional tables
	Prepare              // an XA transaction: XA COMMIT or XA ROLLBACK follows later as a Statement
	Heartbeat            // nothing has happened for a while
)

// Record is one result of a Reader.
type Record struct {
	Kind RecordKind
	// GTID is the transaction's; zero if it has none.
	GTID GTID
	// Rows are the changes of Changes, valid until the next call of the Reader's Next;
	// otherwise nil.
	Rows *Rows
	// Query is the statement of Statement.
	Query Query
	// Position is where to continue after this transaction; set in Commit, Rollback, Prepare
	// and Heartbeat. See Reader.Position.
	Position Position
	// XID is that of Prepare, in the form for the statements that end it: "XA COMMIT " and XID,
	// or "XA ROLLBACK " and XID.
	XID string
	// Time is when the transaction was committed; set in Commit, Rollback and Prepare. See
	// Tracker.CommitTime.
	Time time.Time
}

// ReaderConfig says what a Reader yields.
type ReaderConfig struct {
	// Want selects tables. It is called once for each definition of a table; row events of
	// other tables cost only a map lookup. Default: all tables.
	Want func(schema, table string) bool
	// Describe is called with each new wanted table, before its rows. It may fill in what the
	// log does not have of its columns, by querying the server. Its error ends Next. Default:
	// none.
	Describe func(ctx context.Context, t *Table) error
	// Executed is the set to which the GTIDs of transactions are added. Default: the set at the
	// beginning of the Source, or else that at the beginning of the next file.
	Executed *GTIDSet
	// Heartbeats requests Heartbeat records. Default: false.
	Heartbeats bool
}

// Reader yields the transactions of a Source. It is used by one goroutine at a time.
type Reader struct {
	source  Source
	cfg     ReaderConfig
	tracker Tracker
	tables  tableCache
	rows    Rows
	payload payload

	open     bool // Begin was returned
	inner    bool // payload has events left
	innerEnd RecordKind
	xid      string // of the last prepared XA transaction
	pos      Position
	ahead    Position // pos after the whole queue was returned
	queue    []Record // records of the last event
	given    int      // number of records returned from the queue
	err      error
}

// NewReader returns a reader of what source yields from now on. The caller closes the source.
func NewReader(source Source, cfg ReaderConfig) *Reader {
	r := &Reader{source: source, cfg: cfg, tables: tableCache{want: cfg.Want}}
	if s, ok := source.(interface{ Executed() *GTIDSet }); ok && cfg.Executed == nil {
		cfg.Executed = s.Executed()
	}
	if s, ok := source.(interface{ Start() Position }); ok {
		r.pos, r.ahead = s.Start(), s.Start()
		r.tracker.pos, r.tracker.Unplaced = r.pos, r.pos.IsZero()
	}
	r.tracker.Executed = cfg.Executed.Clone()
	return r
}

// Position returns where to continue: after the last transaction whose end was returned. A
// Source that begins there neither repeats nor misses anything. After a Stream that began after
// GTIDs, it is zero until a transaction or a file has ended: until then, continue after
// Executed.
func (r *Reader) Position() Position { return r.pos }

// Executed returns the GTIDs of all transactions that have ended, including skipped ones, or
// nil if that is unknown. Call it after a record that ends a transaction, not inside one. The
// caller owns the set.
func (r *Reader) Executed() *GTIDSet { return r.tracker.Executed.Clone() }

// Next returns the next record, which is valid until Next is called again. The error is io.EOF
// at the end of the source. If the source can continue after an error, as a Stream can after
// the end of a ctx, so can the reader; after any other error it cannot be used any more.
func (r *Reader) Next(ctx context.Context) (*Record, error) {
	if r.err != nil {
		return nil, r.err
	}
	for r.given == len(r.queue) {
		r.queue, r.given = r.queue[:0], 0
		if r.inner {
			r.err = r.unpack(ctx)
		} else {
			e, err := r.source.Next(ctx)
			if err != nil {
				return nil, err // the source knows whether it can continue
			}
			if err := r.take(ctx, e); err != nil {
				r.err = fmt.Errorf("event at %s:%d: %w", e.File, e.Start(), err)
			}
		}
		if r.err != nil {
			return nil, r.err
		}
		if len(r.queue) == 0 {
			r.pos = r.ahead
		}
	}
	if r.given++; r.given == len(r.queue) {
		r.pos = r.ahead // a transaction ends with the last record of its event
	}
	return &r.queue[r.given-1], nil
}

func (r *Reader) take(ctx context.Context, e *Event) error {
	step, err := r.tracker.Observe(e)
	if err != nil {
		return err
	}
	if step == StepCut {
		r.end(Rollback)
	}
	switch e.Type {
	case IncidentEvent:
		return ErrIncident
	case TransactionPayloadEvent:
		r.inner, r.innerEnd = true, Commit
		return r.payload.open(e.Body())
	case HeartbeatEvent, HeartbeatV2Event:
		if r.cfg.Heartbeats && !r.open {
			r.queue = append(r.queue, Record{Kind: Heartbeat, Position: r.ahead})
		}
	case FormatDescriptionEvent:
		r.tables.trim()
	default:
		if err := r.content(ctx, e); err != nil {
			return err
		}
	}
	switch step {
	case StepCommit:
		r.end(Commit)
	case StepRollback:
		r.end(Rollback)
	case StepPrepare:
		r.end(Prepare)
	default:
		if !r.tracker.InTransaction() {
			r.ahead = r.tracker.Position()
		}
	}
	return nil
}

// unpack processes the next event of a compressed transaction.
func (r *Reader) unpack(ctx context.Context) error {
	e, err := r.payload.next()
	if errors.Is(err, io.EOF) {
		r.inner = false
		r.end(r.innerEnd)
		return nil
	}
	if err != nil {
		return fmt.Errorf("transaction before %s: %w", r.tracker.Position(), err)
	}
	switch e.Type {
	case XAPrepareEvent:
		if xaStep(e.Body()) == StepPrepare {
			r.innerEnd = Prepare
		}
	case QueryEvent:
		if _, sql, err := queryText(e); err == nil && verbOf(sql) == verbRollback {
			r.innerEnd = Rollback
		}
	}
	if err := r.content(ctx, e); err != nil {
		return fmt.Errorf("transaction before %s: %w", r.tracker.Position(), err)
	}
	return nil
}

// content queues the records of an event.
func (r *Reader) content(ctx context.Context, e *Event) error {
	switch e.Type {
	case XAPrepareEvent:
		var err error
		r.xid, err = parseXID(e.Body())
		return err
	case TableMapEvent:
		t, isNew, err := r.tables.put(e.Body())
		if err == nil && isNew && r.cfg.Describe != nil {
			if err = r.cfg.Describe(ctx, t); err != nil {
				err = fmt.Errorf("describe %s: %w", t, err)
				delete(r.tables.tables, t.ID)
			}
		}
		return err
	case QueryEvent, QueryCompressedEvent, ExecuteLoadQueryEvent:
		return r.statement(e)
	}
	if shape, ok := rowsShapeOf(e.Type); ok {
		return r.changes(e, shape)
	}
	return nil
}

func (r *Reader) changes(e *Event, shape rowsShape) error {
	c := cursor{b: e.Body()}
	id, _ := rowsTable(&c)
	known, ok := r.tables.tables[id]
	switch {
	case c.bad:
		return fmt.Errorf("%s: %w", e.Type, ErrMalformed)
	case !ok && id == dummyTable:
		return nil
	case !ok:
		return fmt.Errorf("%s of table %d, which no TABLE_MAP has named: %w", e.Type, id, ErrMalformed)
	case known.table == nil:
		return nil // not wanted
	}
	if err := r.rows.open(known.table, shape, c); err != nil {
		return err
	}
	r.begin()
	r.queue = append(r.queue, Record{Kind: Changes, GTID: r.gtid(), Rows: &r.rows})
	return nil
}

func (r *Reader) statement(e *Event) error {
	q, err := ParseQuery(e)
	if err != nil {
		return err
	}
	switch verbOf([]byte(q.SQL)) {
	case verbOther, verbCreate:
		r.begin()
		r.queue = append(r.queue, Record{Kind: Statement, GTID: r.gtid(), Query: q})
	}
	return nil
}

// gtid returns the GTID of the transaction that an event belongs to, which may have ended
// already for the tracker.
func (r *Reader) gtid() GTID {
	if r.tracker.InTransaction() {
		return r.tracker.Current()
	}
	return r.tracker.GTID()
}

func (r *Reader) begin() {
	if !r.open {
		r.open = true
		r.queue = append(r.queue, Record{Kind: Begin, GTID: r.gtid()})
	}
}

func (r *Reader) end(kind RecordKind) {
	r.ahead = r.tracker.Position()
	r.tables.trim()
	if !r.open {
		return
	}
	r.open = false
	rec := Record{Kind: kind, GTID: r.tracker.GTID(), Position: r.ahead, Time: r.tracker.CommitTime()}
	if kind == Prepare {
		rec.XID = r.xid
	}
	r.queue = append(r.queue, rec)
}
