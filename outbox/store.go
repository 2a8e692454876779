package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Row is a message in the outbox table.
type Row struct {
	Message

	// Seq is the row's number: from a sequence, so later inserts have greater
	// ones, but commits come in any order and rolled back ones leave gaps.
	Seq int64

	// CreatedAt is the moment of the insert by the database's clock.
	CreatedAt time.Time

	// Attempts is how often publishing it has failed. Only set where the
	// method that returns the row says so.
	Attempts int

	// Unreadable says why the row cannot be made a message (headers that are
	// no JSON object). The relay buries it.
	Unreadable error
}

// Ref identifies a row permanently. Its number alone does not: if a table is
// emptied or recreated, another row gets it.
type Ref struct {
	Seq int64
	ID  ID
}

// Refs returns the names of rows.
func Refs(rows []Row) []Ref {
	refs := make([]Ref, len(rows))
	for i := range rows {
		refs[i] = Ref{rows[i].Seq, rows[i].ID}
	}
	return refs
}

// Range is the sequence numbers from First to Last, both inclusive.
type Range struct{ First, Last int64 }

// Layout says what happens to a row that was delivered.
type Layout int

const (
	// Queue deletes it. The table holds pending rows only.
	Queue Layout = iota

	// History keeps it with status 1 and the moment of delivery, in partitions
	// by day or month if the database supports them: for replay and audits.
	History
)

// String is "queue" or "history".
func (l Layout) String() string {
	if l == History {
		return "history"
	}
	return "queue"
}

// ParseLayout reads what String writes.
func ParseLayout(s string) (Layout, error) {
	switch s {
	case "queue", "":
		return Queue, nil
	case "history":
		return History, nil
	}
	return 0, fmt.Errorf("outbox: unknown layout %q: want queue or history", s)
}

// Store is the outbox tables of one database. Implementations are safe for
// concurrent use. Every error says what failed on which table.
type Store interface {
	// Name is the table, "name" or "schema.name".
	Name() string

	// Migrate upgrades the tables to this version: it creates what is missing
	// and changes what is older, under a lock, so that two may run at once, and
	// one may continue another that was interrupted. It refuses tables of a
	// newer version and a change of layout. It returns the SQL statements that
	// it executed, or with plan.DryRun would execute.
	Migrate(ctx context.Context, plan Plan) ([]string, error)

	// Describe reads how the tables were migrated. ErrNotMigrated if they were not.
	Describe(ctx context.Context) (Description, error)

	// Lead takes the leadership of a shard, without waiting: it returns ErrHeld
	// if another relay has it. A separate session holds it, so that it ends
	// with the process, however that ends.
	Lead(ctx context.Context, shard int) (Lease, error)

	// Claim takes rows as most outboxes do, with FOR UPDATE SKIP LOCKED in a
	// transaction that stays open until the claim ends. It returns
	// ErrNoSkipLocked if the database has none.
	Claim(ctx context.Context, req ClaimRequest) (Claim, error)

	// Promote moves scheduled rows that are due, by the database's clock, into
	// the outbox table, at most limit, earliest first. It returns how many it
	// moved and how long until the next one is due: at most a day, negative if
	// none is left. Two may run at once.
	Promote(ctx context.Context, limit int) (moved int, next time.Duration, err error)

	// Status counts what is pending, scheduled, parked and dead.
	Status(ctx context.Context) (Status, error)

	// List yields messages of one state, oldest first.
	List(ctx context.Context, q Query) ([]Listed, error)

	// Requeue makes the dead or, with layout History, delivered messages that q
	// selects pending again, with their old ids. It returns how many.
	Requeue(ctx context.Context, q Query) (int64, error)

	// Purge deletes dead, or with layout History delivered, messages that q
	// selects, in batches that hold no lock for long. Pending ones are never
	// selected. It returns how many.
	Purge(ctx context.Context, q Query) (int64, error)

	// Close closes what the store opened itself.
	Close() error
}

// Announcer is a store through which relays with different claim modes notice
// each other.
type Announcer interface {
	// Announce registers a relay that claims rows with SkipLocked, until the
	// presence is closed; there may be several. In the meantime Lead returns
	// ErrMixedClaims, and so does Announce while a shard is led.
	Announce(ctx context.Context) (Presence, error)
}

// Presence is held by a session of its own, as a [Lease] is.
type Presence interface {
	// Lost is closed when that session has ended.
	Lost() <-chan struct{}
	Close() error
}

// Checker is a store that can check whether its sessions keep their
// connections.
type Checker interface {
	// Check returns ErrPooled if they do not.
	Check(ctx context.Context) error
}

// Partitioner is a store that can partition tables of layout [History].
type Partitioner interface {
	// Partitions describes them, by time, the catch-all last. Empty when the
	// table is not partitioned.
	Partitions(ctx context.Context) ([]Partition, error)

	// MaintainPartitions creates partitions from lookback before now until
	// ahead after it, and drops those that end before now - keep (zero: none)
	// and hold no pending row. It waits for locks no longer than a few seconds
	// and returns what it did. It moves rows of the catch-all into the
	// partitions that it creates.
	MaintainPartitions(ctx context.Context, spec PartitionSpec) (PartitionReport, error)
}

// PartitionSpec says which partitions should exist.
type PartitionSpec struct {
	Period                Period
	Ahead, Lookback, Keep time.Duration
}

// Period is the span of one partition.
type Period int

const (
	Unpartitioned Period = iota
	Daily
	Monthly
)

// String is "none", "day" or "month".
func (p Period) String() string { return [...]string{"none", "day", "month"}[p] }

// ParsePeriod reads what String writes.
func ParsePeriod(s string) (Period, error) {
	for p := Unpartitioned; p <= Monthly; p++ {
		if p.String() == s {
			return p, nil
		}
	}
	return 0, fmt.Errorf("outbox: unknown period %q: want none, day or month", s)
}

// Start is the beginning, in UTC, of the period that t falls into.
func (p Period) Start(t time.Time) time.Time {
	y, m, d := t.UTC().Date()
	if p == Monthly {
		d = 1
	}
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
}

// Next is the beginning of the period after the one that t falls into.
func (p Period) Next(t time.Time) time.Time {
	if p == Monthly {
		return p.Start(t).AddDate(0, 1, 0)
	}
	return p.Start(t).AddDate(0, 0, 1)
}

// Partition is one partition. The catch-all has neither bound.
type Partition struct {
	Name       string
	From, To   time.Time // UTC, To exclusive
	CatchAll   bool
	Rows       int64 // the server's estimate; of the catch-all the exact number, up to 1000
	HasPending bool  // only exact where MaintainPartitions looked
}

// PartitionReport is what MaintainPartitions did.
type PartitionReport struct {
	Created, Dropped, Kept []string // names; Kept ended long ago but hold pending rows
	CatchAllRows           int64    // rows that are still in the catch-all, which is an alarm
}

// Plan is the form that Migrate gives the tables.
type Plan struct {
	Layout    Layout
	Shards    int // zero: as it is, or 1
	Partition PartitionSpec
	// Convert allows rebuilding a History table without partitions as a
	// partitioned one (or with another period), which copies every row.
	Convert bool
	DryRun  bool
}

// Description is how the tables were migrated.
type Description struct {
	Version   int
	Layout    Layout
	Shards    int
	Period    Period
	Server    string // product and version, for display
	CanTail   error  // nil: the log can be tailed; otherwise the reason why not
	SkipLocks bool
}

// Errors that callers tell apart.
var (
	ErrNotMigrated  = errors.New("outbox: the tables do not exist: run `weir outbox migrate` or Store.Migrate")
	ErrHeld         = errors.New("outbox: another relay leads this shard")
	ErrDeposed      = errors.New("outbox: this relay leads the shard no longer")
	ErrRecreated    = errors.New("outbox: the table was emptied or made anew: its numbers may begin again")
	ErrNewer        = errors.New("outbox: the tables are of a newer weir")
	ErrNoSkipLocked = errors.New("outbox: this database has no SKIP LOCKED")

	// ErrMixedClaims refuses a relay that would deliver the same messages as others: a leader
	// does not see the locks of workers, nor they its leadership.
	ErrMixedClaims = errors.New("outbox: of the relays of one table all claim with skip-locked, or none does: stop the others first, or claim as they do")

	// ErrPooled refuses a path to the database on which a session does not keep its
	// connection: a leadership is a lock of a session.
	ErrPooled = errors.New("outbox: a pooler between the relay and its database gives sessions another connection between transactions (pool_mode = transaction or statement): leadership is a lock of a session and would be lost, or be another's: connect to the database itself, or by a pool with pool_mode = session")

	// ErrWindowNeedsPartitions refuses a window on a table without partitions:
	// every read would scan the whole history to find the few rows in the window.
	ErrWindowNeedsPartitions = errors.New("outbox: a window needs a partitioned table: without partitions every read walks the whole history; run `weir outbox migrate --layout history --partition day --convert`, or drop the window")
)

// TailError says why the log cannot be tailed; the relay then polls.
type TailError struct{ Reason string }

func (e *TailError) Error() string { return "outbox: cannot tail the database's log: " + e.Reason }

// Mark is a moment of a database as its store understands it.
type Mark any

// ReadRequest asks for pending rows.
type ReadRequest struct {
	// After selects the rows with greater numbers.
	After int64
	// Gaps also selects the rows inside these ranges. They lie at or below After, ascend
	// and do not touch. A store may also return rows that lie between them, since the caller
	// knows which rows it has had.
	Gaps []Range
	// Limit is the most rows, MaxBytes the most bytes of payload (one row may
	// exceed it). Either cuts the page short, but it stays a prefix, by number,
	// of what the snapshot holds.
	Limit    int
	MaxBytes int
}

// Page is what one snapshot of the table holds of a request, by ascending
// number. The slice is the store's and valid until the next Read; what the rows
// refer to (payloads, keys, headers) belongs to the caller, so a store
// allocates it anew for every page.
type Page struct {
	Rows []Row
	More bool // it was cut short
}

// Lease is the leadership of one shard. Read, Mark and Settled are called by
// one goroutine; the others may be called concurrently with them and each
// other. Methods return ErrDeposed (wrapped) once the leadership is lost.
type Lease interface {
	// Read returns pending rows of this shard from a single snapshot (one
	// statement): the order of keys depends on this.
	Read(ctx context.Context, req ReadRequest) (Page, error)

	// Mark records which transactions may still commit rows with numbers below
	// those seen so far. Settled reports whether all of them have ended. A row
	// that a Read does not find, if it began after Settled returned true, will
	// never appear.
	Mark(ctx context.Context) (Mark, error)
	Settled(ctx context.Context, m Mark) (bool, error)

	// Fetch reads pending rows by number, ascending; those that are gone are
	// left out.
	Fetch(ctx context.Context, seqs []int64) ([]Row, error)

	// Pending lists up to limit numbers of pending rows of this shard after the
	// number given and up to last, ascending, from one snapshot.
	Pending(ctx context.Context, after, last int64, limit int) ([]int64, error)

	// Ack records that the rows were delivered, in few statements. It ignores
	// rows that no longer exist, and does not touch a row that has the number
	// of one of them but another id.
	Ack(ctx context.Context, rows []Ref) error

	// Park records failed attempts, so that they survive the relay. Parked
	// reads all of this shard. Both identify rows as Ack does, by number and
	// id.
	Park(ctx context.Context, p []Parking) error
	Parked(ctx context.Context) ([]Parking, error)

	// Bury moves rows to the dead letters, in one transaction. It also
	// identifies them by number and id.
	Bury(ctx context.Context, b []Burial) error

	// Tail begins to follow the database's log: Tail.Next returns what commits
	// after Tail has returned. A TailError says why that is not possible.
	Tail(ctx context.Context) (Tail, error)

	// Lost is closed when the session that holds the leadership has ended.
	Lost() <-chan struct{}

	// Close gives up the leadership.
	Close() error
}

// Renewer is a lease that notices when its table was recreated, so that a relay
// need not wait for its sweep to find numbers below those that it has seen.
type Renewer interface {
	// Renewed reports whether the table was recreated since the leadership began, or
	// numbers its rows from the beginning again.
	Renewed(ctx context.Context) (bool, error)
}

// Tail yields inserted rows of the shard in the order of their commits.
type Tail interface {
	// Next waits for rows and returns those available, owned as those of a Page.
	// After an error the tail has ended.
	Next(ctx context.Context) ([]Row, error)
	Close() error
}

// Parking records failed attempts. Delay counts from now, by the database's
// clock.
type Parking struct {
	Seq      int64
	ID       ID
	Attempts int
	Delay    time.Duration
	Error    string
}

// Burial is a row that becomes a dead letter, and why.
type Burial struct {
	Seq      int64
	ID       ID
	Attempts int
	Reason   string // "rejected", "attempts", "unreadable"
	Error    string
}

// ClaimRequest asks for up to Limit rows with up to MaxBytes of payload, if that is not
// zero; one row may exceed it. With a Window only rows that were
// created less than it ago are taken, which needs a partitioned table
// (ErrWindowNeedsPartitions).
type ClaimRequest struct {
	Limit    int
	MaxBytes int
	Window   time.Duration
}

// Claim holds the locks of its rows until Finish or Release.
type Claim interface {
	// Rows are the claimed rows by ascending number, with their Attempts.
	Rows() []Row
	// Finish records the outcome of every row and commits: acked ones by number,
	// parked and buried ones. Rows that none of the three name stay pending.
	Finish(ctx context.Context, acked []int64, parked []Parking, buried []Burial) error
	// Release rolls back. It is a no-op after Finish.
	Release() error
}

// State is the state of a message.
type State string

const (
	Pending   State = "pending"
	Scheduled State = "scheduled"
	Dead      State = "dead"
	Delivered State = "delivered" // layout History
)

// Query selects messages. Zero fields select everything.
type Query struct {
	State         State
	IDs           []ID
	Topic, Key    string
	Since, Before time.Time     // by creation; of the dead, by death
	OlderThan     time.Duration // as Before, by the database's clock; to the microsecond
	Limit         int

	// NewIdentity makes Requeue give each message a new DedupKey, for brokers and
	// inboxes that remember the old one. The id stays.
	NewIdentity bool
}

// Listed is a message with its state.
type Listed struct {
	Row
	State   State
	DueAt   time.Time // scheduled: when it is due; pending and parked: when it is next tried
	EndedAt time.Time // dead or delivered since
	Reason  string    // dead: see Burial
	Error   string    // parked or dead: the last error
}

// Status is the contents of the tables, counted.
type Status struct {
	Pending, Scheduled, Parked, Dead int64
	Delivered                        int64         // layout History
	Oldest                           time.Duration // age of the oldest pending row; zero: none
	OutsideWindow                    int64         // filled by a relay with a window
	Leases                           []LeaseStatus
}

// LeaseStatus says who leads a shard.
type LeaseStatus struct {
	Shard int
	Owner string // host and process of the last leader
	Epoch int64  // how often leadership was taken
	Held  bool
}

// ShardBuckets is the range of buckets that shard i of n leads.
func ShardBuckets(i, n int) (first, last int) {
	return i * Buckets / n, (i+1)*Buckets/n - 1
}
