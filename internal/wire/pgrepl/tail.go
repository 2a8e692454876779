package pgrepl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// TailConfig says what to tail.
type TailConfig struct {
	StreamConfig
	// Slot is a logical slot of pgoutput in the connection's database; CreateSlot creates one.
	Slot string
	// Publications say what the server sends. They must exist before the first change that is
	// to be received. If one does not exist, Next returns an error; since PostgreSQL 18 it
	// silently gets nothing.
	Publications []string
	// Tables restricts the tables of the publications. Default: all of them.
	Tables []Table
	// Start skips what ended before this position, which is the End of an earlier event and
	// counts as confirmed. Default: 0, the slot's confirmed position.
	Start LSN
	// Binary requests values in binary format if their type has one. It needs PostgreSQL 14.
	Binary bool
	// Messages are the prefixes of the messages of pg_logical_emit_message to receive. It needs
	// PostgreSQL 14. Default: none.
	Messages []string
}

// Table is the name of a table.
type Table struct{ Namespace, Name string }

// String quotes the name for SQL.
func (t Table) String() string { return ident(t.Namespace) + "." + ident(t.Name) }

// EventKind is the kind of an event.
type EventKind byte

// The kinds of event.
const (
	EventInsert EventKind = iota + 1
	EventUpdate
	EventDelete
	EventTruncate
	EventMessage
	// EventCommit ends a transaction that had at least one other event.
	EventCommit
)

// Event is one change, message or commit. Its rows and its message are valid until the next
// call of Next; Tx and Relation may be kept.
type Event struct {
	Kind EventKind
	// Tx is the transaction. It is nil for a message outside of transactions.
	Tx *Tx
	// End is the argument of Confirm when all events so far were processed: the end of the
	// transaction in an EventCommit, of the message in an EventMessage without a Tx. Otherwise
	// 0.
	End LSN

	Relation *Relation // of EventInsert, EventUpdate, EventDelete, EventTruncate
	New      []Value   // of EventInsert, EventUpdate
	OldKind  OldKind   // of EventUpdate, EventDelete
	Old      []Value
	Message  *LogicalMessage
}

// Tx is a committed transaction.
type Tx struct {
	// CommitLSN orders transactions by their commits. It is unique, and the same each time the
	// transaction is sent.
	CommitLSN LSN
	Time      time.Time // when it committed, by the server's clock
	XID       uint32
}

// Tail is a stream of the changes of selected tables, transaction by transaction in commit
// order. One goroutine receives; Confirm, Confirmed and Report are safe for concurrent use.
//
// The position reported to the server advances only with Confirm and, while everything received
// is confirmed, with what the server sends about other tables: a table with few changes does
// not make a busy server keep its log.
type Tail struct {
	stream  *Stream
	decoder Decoder
	cfg     TailConfig
	wanted  map[uint32]bool // by the OID of a relation

	tx      *Tx // the transaction being received
	touched bool
	event   Event
	queue   []*Relation // relations of a truncate that Next has not returned yet

	mu        sync.Mutex
	received  LSN // End of the last event that Next returned
	confirmed LSN
	// passed is how far the server has sent without anything to return after received.
	passed LSN
}

// StartTail starts to tail, on a connection of mode Logical. The connection is in use until the
// tail has ended.
func (c *Conn) StartTail(ctx context.Context, cfg TailConfig) (*Tail, error) {
	options, err := tailOptions(cfg, c.version)
	if err != nil {
		return nil, fmt.Errorf("start tail: %w", err)
	}
	floor, err := c.confirmedFlush(ctx, cfg.Slot)
	if err != nil {
		return nil, fmt.Errorf("start tail: %w", err)
	}
	stream, err := c.StartLogical(ctx, LogicalConfig{
		StreamConfig: cfg.StreamConfig, Slot: cfg.Slot, Start: cfg.Start, Options: options,
	})
	if err != nil {
		return nil, err
	}
	// While it catches up, a server reports positions before the slot's confirmed one. Before
	// PostgreSQL 18, confirming them would move the slot back.
	stream.SetPosition(At(max(floor, cfg.Start)))
	return &Tail{stream: stream, cfg: cfg, wanted: map[uint32]bool{}}, nil
}

// confirmedFlush returns the confirmed position of a logical slot.
func (c *Conn) confirmedFlush(ctx context.Context, slot string) (LSN, error) {
	results, err := c.Query(ctx, "SELECT confirmed_flush_lsn FROM pg_catalog.pg_replication_slots WHERE slot_name = "+literal(slot))
	if err != nil {
		return 0, fmt.Errorf("look up replication slot %s: %w", slot, err)
	}
	// If the slot does not exist, START_REPLICATION reports it.
	if len(results) == 0 || len(results[0].Rows) == 0 || results[0].Rows[0][0] == nil {
		return 0, nil
	}
	return ParseLSN(string(results[0].Rows[0][0]))
}

// tailOptions returns pgoutput's options.
func tailOptions(cfg TailConfig, version int) ([]pgwire.Param, error) {
	if len(cfg.Publications) == 0 {
		return nil, errors.New("no publication")
	}
	var names []string
	for _, p := range cfg.Publications {
		names = append(names, ident(p))
	}
	options := []pgwire.Param{
		{Name: "proto_version", Value: "1"},
		{Name: "publication_names", Value: strings.Join(names, ",")},
	}
	if (cfg.Binary || len(cfg.Messages) > 0) && version < 140000 {
		return nil, fmt.Errorf("binary values and messages need PostgreSQL 14: %w", ErrVersion)
	}
	if cfg.Binary {
		options = append(options, pgwire.Param{Name: "binary", Value: "true"})
	}
	if len(cfg.Messages) > 0 {
		options = append(options, pgwire.Param{Name: "messages", Value: "true"})
	}
	return options, nil
}

// Next returns the next event. If ctx ends, nothing is lost, and Next can be called again.
func (t *Tail) Next(ctx context.Context) (*Event, error) {
	for {
		if len(t.queue) > 0 {
			return t.truncated(), nil
		}
		f, err := t.stream.Receive(ctx)
		if err != nil {
			return nil, fmt.Errorf("tail slot %s: %w", t.cfg.Slot, err)
		}
		if f.Keepalive() {
			t.pass(f.End)
			continue
		}
		if t.skip(f.Data) {
			continue
		}
		m, err := t.decoder.Decode(f.Data)
		if err != nil {
			return nil, fmt.Errorf("tail slot %s: %w", t.cfg.Slot, t.stream.conn.fail(err))
		}
		e, err := t.handle(m)
		if err != nil {
			return nil, fmt.Errorf("tail slot %s: %w", t.cfg.Slot, t.stream.conn.fail(err))
		}
		if e != nil {
			return e, nil
		}
	}
}

// skip reports whether data is a change of a table that is not wanted. It reads only the first
// five bytes, so such rows are not decoded.
func (t *Tail) skip(data []byte) bool {
	if len(data) < 5 {
		return false
	}
	switch data[0] {
	case 'I', 'U', 'D':
		wanted, known := t.wanted[binary.BigEndian.Uint32(data[1:])]
		return known && !wanted
	}
	return false
}

// handle converts a message to an event; nil if it is none.
func (t *Tail) handle(m Message) (*Event, error) {
	switch m := m.(type) {
	case *Begin:
		if t.tx != nil {
			return nil, fmt.Errorf("a transaction begins inside another: %w", pgwire.ErrMalformed)
		}
		t.tx, t.touched = &Tx{CommitLSN: m.CommitLSN, Time: m.Time, XID: m.XID}, false
	case *Commit:
		return t.commit(m)
	case *Relation:
		t.wanted[m.OID] = len(t.cfg.Tables) == 0 || slices.Contains(t.cfg.Tables, Table{m.Namespace, m.Name})
	case *Insert:
		return t.change(Event{Kind: EventInsert, Relation: m.Relation, New: m.New})
	case *Update:
		return t.change(Event{Kind: EventUpdate, Relation: m.Relation, New: m.New, OldKind: m.OldKind, Old: m.Old})
	case *Delete:
		return t.change(Event{Kind: EventDelete, Relation: m.Relation, OldKind: m.OldKind, Old: m.Old})
	case *Truncate:
		for _, r := range m.Relations {
			if t.wanted[r.OID] {
				t.queue = append(t.queue, r)
			}
		}
		if t.tx == nil {
			return nil, fmt.Errorf("a change outside a transaction: %w", pgwire.ErrMalformed)
		}
	case *LogicalMessage:
		return t.message(m)
	}
	return nil, nil
}

func (t *Tail) change(e Event) (*Event, error) {
	if t.tx == nil {
		return nil, fmt.Errorf("a change outside a transaction: %w", pgwire.ErrMalformed)
	}
	e.Tx = t.tx
	t.touched, t.event = true, e
	return &t.event, nil
}

func (t *Tail) truncated() *Event {
	t.touched, t.event = true, Event{Kind: EventTruncate, Tx: t.tx, Relation: t.queue[0]}
	t.queue = t.queue[1:]
	return &t.event
}

func (t *Tail) message(m *LogicalMessage) (*Event, error) {
	if !slices.Contains(t.cfg.Messages, m.Prefix) {
		return nil, nil
	}
	t.event = Event{Kind: EventMessage, Tx: t.tx, Message: m}
	switch {
	case !m.Transactional:
		// The server repeats what begins at the confirmed position, so confirm one byte more.
		t.event.Tx, t.event.End = nil, m.LSN+1
		t.hand(t.event.End)
	case t.tx == nil:
		return nil, fmt.Errorf("a transactional message outside a transaction: %w", pgwire.ErrMalformed)
	default:
		t.touched = true
	}
	return &t.event, nil
}

func (t *Tail) commit(m *Commit) (*Event, error) {
	tx := t.tx
	if tx == nil || tx.CommitLSN != m.CommitLSN {
		return nil, fmt.Errorf("the end of a transaction that has not begun: %w", pgwire.ErrMalformed)
	}
	t.tx = nil
	if !t.touched {
		t.pass(m.End)
		return nil, nil
	}
	t.hand(m.End)
	t.event = Event{Kind: EventCommit, Tx: tx, End: m.End}
	return &t.event, nil
}

// hand records that an event with this End was returned and must be confirmed.
func (t *Tail) hand(end LSN) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.received = max(t.received, end)
}

// pass records that the server has sent everything that ends before this position, without
// anything to return since the last event.
func (t *Tail) pass(end LSN) {
	if t.tx != nil {
		return // its first rows may have been returned already, and End is unknown
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.passed = max(t.passed, end)
	t.settle()
}

// Confirm says that all events up to this End were processed and need not be sent again. The
// server is told at the next interval, or by Report.
//
// A server that restarts may return to an older position: always after a crash, and before
// PostgreSQL 17 even after a clean shutdown. A caller that must not process events twice stores
// the last End, in one transaction with the effects of the events, and passes it as
// TailConfig.Start.
func (t *Tail) Confirm(end LSN) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.confirmed = max(t.confirmed, end)
	t.settle()
}

// settle sets the position that follows from what is confirmed. The caller holds mu.
func (t *Tail) settle() {
	safe := t.confirmed
	if t.confirmed >= t.received {
		safe = max(safe, t.passed)
	}
	t.stream.SetPosition(At(safe))
}

// Report reports the confirmed position to the server now.
func (t *Tail) Report(ctx context.Context) error { return t.stream.Report(ctx) }

// End reports the confirmed position and ends the stream. After that the connection can be used
// for SQL, but not for another tail. In the middle of a large transaction the server first
// sends the rest of it, which is discarded: Report and Conn.Close are faster.
func (t *Tail) End(ctx context.Context) error { return t.stream.End(ctx) }
