package mysql

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/backup/archive"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/wire/binlog"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// ReplayOptions say which part of an archived binary log is replayed, and where.
type ReplayOptions struct {
	// DSN says where the server is and which user logs in. The account needs the server's
	// privilege for BINLOG (BINLOG REPLAY, BINLOG_ADMIN or SUPER). Required.
	DSN string

	// Storage has the log, below Dir ("" or a name with a slash at its end). Storage is
	// required.
	Storage archive.Storage
	Dir     string

	// From is where to begin: the position in the manifest of the backup that has been
	// restored. Required.
	From binlog.Position

	// Settled is where the log ended when all definitions of the backup had been read. The
	// effects of statements before it may exist already. Default: From.
	Settled binlog.Position

	// Until is a time: transactions that were committed after it are omitted. Servers record it
	// to the second, MySQL 8 to the microsecond. UntilPosition is where to end; UntilGTID is
	// the last transaction. Default: the end of the archive. At most one is given.
	Until         time.Time
	UntilPosition binlog.Position
	UntilGTID     binlog.GTID

	// Databases restricts the replay to changes of these, whatever the default database of the
	// client was. A statement that changes one of them and also another is an error. Default:
	// all except the server's own, and objects outside databases, such as accounts.
	Databases []string
}

func (o ReplayOptions) validate() error {
	given := 0
	for _, is := range []bool{!o.Until.IsZero(), !o.UntilPosition.IsZero(), !o.UntilGTID.IsZero()} {
		if is {
			given++
		}
	}
	switch {
	case o.DSN == "":
		return errors.New("no DSN: into which server?")
	case o.Storage == nil:
		return errors.New("no storage: where is the binary log?")
	case o.From.IsZero():
		return errors.New("no position: where does the replay begin? (a backup has one if its server keeps a binary log)")
	case given > 1:
		return errors.New("end at one of a time, a position, a GTID")
	}
	return nil
}

// ReplayResult is what a replay reports. It is also valid together with an error.
type ReplayResult struct {
	// Position is after the last transaction that was replayed or skipped, in the source's log.
	Position binlog.Position
	// GTID is the one of the last transaction; zero if it has none.
	GTID binlog.GTID
	// Transactions and Statements count what was run; row events are in neither.
	Transactions, Statements int
	// Rows counts row events.
	Rows int
}

// Replay runs an archived binary log against a restored server. It sends row changes with
// BINLOG, unchanged; statements run with the settings of their session. A transaction is either
// committed or has no effect; statements such as ALTER commit by themselves, as on the source.
// After an error the target is at the result's position, except for a statement that failed
// half-way.
func Replay(ctx context.Context, o ReplayOptions) (*ReplayResult, error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	cfg, err := mywire.ParseClientDSN(o.DSN)
	if err != nil {
		return nil, err
	}
	logs, err := my.OpenLogs(ctx, o.Storage, o.Dir, o.From)
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	p := newReplayer(o)
	if o.UntilPosition == o.From {
		return p.result, logs.Close()
	}
	if p.s, err = my.Connect(ctx, cfg, ""); err != nil {
		return nil, errors.Join(err, logs.Close())
	}
	if err = logRows(ctx, p.s); err == nil {
		err = unlogged(p.all(ctx, logs))
	}
	err = errors.Join(err, p.s.Close(), logs.Close())
	if err != nil {
		err = fmt.Errorf("replay after %s: %w", p.result.Position, err)
	}
	return p.result, err
}

func newReplayer(o ReplayOptions) *replayer {
	return &replayer{o: o, result: &ReplayResult{Position: o.From}, maps: map[uint64]tableMap{}, seen: seen{until: o.Settled}}
}

// CheckReplay returns why a server would refuse a replay, before anything is changed: each
// transaction is replayed with the time that it had at the source, and with secure_timestamp
// MariaDB may not accept a time from a client.
func CheckReplay(ctx context.Context, dsn string) error {
	cfg, err := mywire.ParseClientDSN(dsn)
	if err != nil {
		return err
	}
	s, err := my.Connect(ctx, cfg, "")
	if err != nil {
		return err
	}
	err = s.Exec(ctx, "SET timestamp = 1700000000")
	if my.ErrorCode(err) != 0 {
		err = fmt.Errorf("the server does not let this account set the time of a replayed change: %w", err)
	}
	return errors.Join(err, s.Close())
}

// HoldEvents keeps the server's events from running until release is called: events that a
// backup or a replay brings would change what is replayed, while the log already has their
// effects at the source. held reports whether any would have run.
func HoldEvents(ctx context.Context, dsn string) (held bool, release func(context.Context) error, err error) {
	release = func(context.Context) error { return nil }
	cfg, err := mywire.ParseClientDSN(dsn)
	if err != nil {
		return false, release, err
	}
	set := func(ctx context.Context, to string) error {
		s, err := my.Connect(ctx, cfg, "")
		if err != nil {
			return err
		}
		row, err := s.Row(ctx, "SELECT @@GLOBAL.event_scheduler")
		if err == nil && row[0] != to && row[0] != "DISABLED" {
			held = true
			err = s.Exec(ctx, "SET GLOBAL event_scheduler = "+to)
		}
		return errors.Join(err, s.Close())
	}
	cfg.Database = ""
	if err := set(ctx, "OFF"); err != nil {
		return false, release, fmt.Errorf("keep events from running while log is replayed: %w (SET GLOBAL event_scheduler = OFF on the server first)", err)
	}
	if held {
		release = func(ctx context.Context) error {
			if err := set(ctx, "ON"); err != nil {
				return fmt.Errorf("let events run again: %w (SET GLOBAL event_scheduler = ON does)", err)
			}
			return nil
		}
	}
	return held, release, nil
}

// replayer is one run of Replay.
type replayer struct {
	o       ReplayOptions
	s       *my.Session
	tracker binlog.Tracker
	result  *ReplayResult

	format  []byte // format description that the session must get
	told    bool
	seen    seen
	maps    map[uint64]tableMap // of the current statement
	group   rowGroup
	begun   bool // BEGIN has been sent
	written bool // the transaction has had an effect

	// statement, if not nil, receives statements instead of the server, which gets nothing.
	statement func(replayed)
}

// replayed is a statement of the log that is replayed.
type replayed struct {
	sql, settings string // settings are those of its session
	ansi          bool
}

// exec runs a statement on the target.
func (p *replayer) exec(ctx context.Context, sql string) error {
	if p.s == nil {
		return nil
	}
	return p.s.Exec(ctx, sql)
}

// errEnd is returned when the requested end is reached.
var errEnd = errors.New("end")

func (p *replayer) all(ctx context.Context, logs *my.Logs) error {
	for {
		e, err := logs.Next(ctx)
		if errors.Is(err, io.EOF) {
			return p.ended()
		}
		if err != nil {
			return err
		}
		err = p.event(ctx, e)
		if errors.Is(err, errEnd) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s event at %s:%d: %w", e.Type, e.File, e.Start(), err)
		}
	}
}

// ended returns an error if the archive must not end here.
func (p *replayer) ended() error {
	switch {
	case p.tracker.InTransaction() && p.begun:
		return errors.New("the archived log ends inside a transaction")
	case !p.o.UntilGTID.IsZero():
		return fmt.Errorf("the archived log ends before %s", p.o.UntilGTID)
	case !p.o.UntilPosition.IsZero() && p.result.Position != p.o.UntilPosition:
		return fmt.Errorf("the archived log ends before %s", p.o.UntilPosition)
	}
	return nil
}

// event replays an event.
func (p *replayer) event(ctx context.Context, e *binlog.Event) error {
	was := p.tracker.InTransaction()
	step, err := p.tracker.Observe(e)
	if err != nil {
		return err
	}
	p.seen.pass(e)
	if !was && p.past(e) {
		return errEnd
	}
	switch step {
	case binlog.StepCut, binlog.StepRollback:
		return p.end(ctx, e, "ROLLBACK")
	case binlog.StepPrepare:
		return errors.New("XA transactions cannot be replayed: how they end is not known when they are prepared")
	case binlog.StepNone, binlog.StepCommit:
	}
	switch e.Type {
	case binlog.FormatDescriptionEvent:
		p.format, p.told = append(p.format[:0], e.Raw...), false
	case binlog.TableMapEvent:
		err = p.tableMap(e)
	case binlog.QueryEvent, binlog.QueryCompressedEvent:
		err = p.query(ctx, e, step)
	case binlog.IntVarEvent, binlog.RandEvent, binlog.UserVarEvent, binlog.BeginLoadQueryEvent, binlog.ExecuteLoadQueryEvent:
		err = errors.New("changes are logged as statements, and are exact as rows only (binlog_format of the source)")
	case binlog.TransactionPayloadEvent:
		err = errors.New("compressed transactions of MySQL (binlog_transaction_compression) cannot be replayed")
	case binlog.IncidentEvent:
		err = binlog.ErrIncident
	default:
		if isRows(e.Type) {
			err = p.rows(ctx, e)
		}
	}
	if err == nil && step == binlog.StepCommit {
		err = p.end(ctx, e, "COMMIT")
	}
	return err
}

// past reports whether the transaction that e begins is after the requested end.
func (p *replayer) past(e *binlog.Event) bool {
	if until := p.o.UntilPosition; !until.IsZero() && e.Stored() && e.File == until.File && e.End > until.Pos {
		return true
	}
	if p.o.Until.IsZero() {
		return false
	}
	at := p.tracker.CurrentTime()
	if at.IsZero() {
		at = p.tracker.CommitTime() // a statement that is the whole transaction
	}
	return e.Stored() && (p.tracker.InTransaction() || e.Type == binlog.QueryEvent) && at.After(p.o.Until)
}

// end ends a transaction, if one has begun.
func (p *replayer) end(ctx context.Context, e *binlog.Event, verb string) error {
	if err := p.flush(ctx); err != nil {
		return err
	}
	if p.begun {
		if err := p.exec(ctx, verb); err != nil {
			return err
		}
	}
	if verb == "COMMIT" && p.written {
		p.result.Transactions++
	}
	p.begun, p.written = false, false
	p.result.Position = binlog.Position{File: e.File, Pos: e.End}
	p.result.GTID = p.tracker.GTID()
	if !p.o.UntilGTID.IsZero() && p.result.GTID == p.o.UntilGTID || p.result.Position == p.o.UntilPosition {
		return errEnd
	}
	return nil
}

// begin begins the transaction on the target before its first change.
func (p *replayer) begin(ctx context.Context) error {
	p.written = true
	if p.begun {
		return nil
	}
	if err := p.tell(ctx); err != nil {
		return err
	}
	p.begun = true
	return p.exec(ctx, "BEGIN")
}

// tell sends the session the format of events, which MySQL accepts only between transactions.
// After it MySQL expects GTIDs to be set, too; they must be the target's own.
func (p *replayer) tell(ctx context.Context) error {
	if p.told {
		return nil
	}
	p.told = true
	if err := p.exec(ctx, "BINLOG '"+base64.StdEncoding.EncodeToString(p.format)+"'"); err != nil {
		return fmt.Errorf("describe the format: %w", err)
	}
	if p.s == nil || p.s.IsMariaDB() {
		return nil
	}
	return p.exec(ctx, "SET SESSION gtid_next = 'AUTOMATIC'")
}

// ownDatabases belong to the server: changes in them concerned the source server itself.
var ownDatabases = []string{"mysql", "sys", "performance_schema", "information_schema"}

func (p *replayer) wanted(database string) bool {
	if len(p.o.Databases) > 0 {
		return slices.Contains(p.o.Databases, database)
	}
	return !slices.Contains(ownDatabases, strings.ToLower(database))
}

// meant reports whether a statement changes what is replayed.
func (p *replayer) meant(sql, database string, ansi bool) (bool, error) {
	r := reachOf(sql, database, ansi)
	all := len(p.o.Databases) == 0
	switch {
	case r.control:
		return true, nil // whatever the default database was
	case r.rows && all:
		return p.wanted(database), nil
	case r.rows:
		// A statement that changes rows does not show which tables it changes.
		for _, t := range append(tokens(sql, ansi), sqlToken{kind: wordToken, text: database}) {
			if t.kind != otherToken && p.wanted(t.text) {
				return false, fmt.Errorf("changes are logged as statements, and only all databases can be replayed: %s", restore.First(sql, 200))
			}
		}
		return false, nil
	case len(r.databases) == 0 && r.known:
		return all, nil
	}
	do, other := false, ""
	for _, name := range r.databases {
		if p.wanted(name) {
			do = true
		} else {
			other = name
		}
	}
	if do && other != "" {
		return false, fmt.Errorf("it changes database %s, too, which is not replayed (restore all databases, or up to there): %s", other, restore.First(sql, 200))
	}
	return do, nil
}

// query runs a statement with the settings of its session.
func (p *replayer) query(ctx context.Context, e *binlog.Event, step binlog.Step) error {
	q, err := binlog.ParseQuery(e)
	if err != nil {
		return err
	}
	switch strings.ToUpper(strings.TrimSuffix(q.SQL, ";")) {
	case "BEGIN", "COMMIT", "ROLLBACK":
		return nil
	}
	settings, failed, mode := sessionOf(e)
	ansi := mode&ansiQuotes != 0
	if do, err := p.meant(q.SQL, q.Schema, ansi); err != nil || !do {
		return err
	}
	if err := p.flush(ctx); err != nil {
		return err
	}
	if step == binlog.StepNone {
		if err := p.begin(ctx); err != nil {
			return err
		}
	}
	p.written = true
	if p.statement != nil {
		p.statement(replayed{q.SQL, settings, ansi})
		return nil
	}
	sql := q.SQL
	if c := accountsOf(sql, ansi); c.verb != "" {
		sql = c.again(sql) // PlanReplay has compared those that existed before the restore
	}
	if q.Schema != "" {
		err := p.exec(ctx, "USE "+my.Ident(q.Schema))
		if err != nil && my.ErrorCode(err) != mywire.ErrUnknownDatabase { // CREATE DATABASE is logged with itself as the default
			return err
		}
	}
	if err := p.exec(ctx, settings); err != nil {
		return fmt.Errorf("settings of the session: %w", err)
	}
	err = p.exec(ctx, p.seen.again(sql, ansi))
	if code := my.ErrorCode(err); code != 0 && (code == failed || p.seen.excuses(sql, ansi, code) || hasBeen(sql, ansi, code)) {
		err = nil // as on the source, where it had changed something before, or as in the backup
	}
	if err != nil {
		return restore.StatementError(q.SQL, err)
	}
	p.result.Statements++
	return p.exec(ctx, my.Unset+", timestamp = DEFAULT, foreign_key_checks = 1, unique_checks = 1, auto_increment_increment = 1, auto_increment_offset = 1")
}
