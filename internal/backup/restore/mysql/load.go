package mysql

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/backup/archive"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/backup/restore"
)

// loadAttempts bounds how often a chunk is loaded again after deadlocks with other chunks of
// its table.
const loadAttempts = 10

// A loader loads the rows of chunks into the tables of a database.
type loader struct{ *database }

// chunk loads a chunk in a transaction that also records it.
func (l loader) chunk(ctx context.Context, s *my.Session, t *table, c archive.Chunk) error {
	// MariaDB loads the first rows of a table without unique_checks in bulk, which is faster
	// and locks the table: other chunks of it would wait.
	checks := "SET unique_checks = 0"
	if len(t.chunks) > 1 {
		checks = "SET unique_checks = 1"
	}
	if err := s.Exec(ctx, checks); err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		err := l.transact(ctx, s, t, c)
		if err == nil {
			break
		}
		if s.Broken() == nil {
			err = errors.Join(err, s.Exec(ctx, "ROLLBACK"))
		}
		if !deadlock(err) || attempt == loadAttempts {
			return l.rowsError(t, c, err)
		}
	}
	l.loaded(c)
	return nil
}

func (l loader) loaded(c archive.Chunk) {
	l.opts.Progress.Add(c.PlainBytes, c.Rows)
	l.Loaded(&c)
}

func (l loader) transact(ctx context.Context, s *my.Session, t *table, c archive.Chunk) error {
	if err := s.Exec(ctx, "START TRANSACTION"); err != nil {
		return err
	}
	if err := l.rows(ctx, s, t, c); err != nil {
		return err
	}
	if err := s.Exec(ctx, note(c.Path)); err != nil {
		return err
	}
	return s.Exec(ctx, "COMMIT")
}

// plain loads a table without transactions: as a whole, and from the beginning after an
// interruption.
func (l loader) plain(ctx context.Context, s *my.Session, t *table, step string) error {
	var err error
	if l.journal.Has(t.begunStep()) {
		err = l.truncate(ctx, s, t)
	} else if err = l.empty(ctx, s, t); err == nil {
		err = s.Exec(ctx, note(t.begunStep()))
	}
	for _, c := range t.chunks {
		if err == nil {
			if err = l.rows(ctx, s, t, c); err != nil {
				return l.rowsError(t, c, err)
			}
		}
	}
	if err == nil {
		err = s.Exec(ctx, note(step))
	}
	if err != nil {
		return l.object("rows of table "+t.name(), "", err)
	}
	for _, c := range t.chunks {
		l.loaded(c)
	}
	return nil
}

// truncate removes the rows that an interrupted run has loaded.
func (l loader) truncate(ctx context.Context, s *my.Session, t *table) error {
	err := s.Exec(ctx, "TRUNCATE TABLE "+my.Ident(t.name()))
	switch remembers, deletesNothing := uint16(4137), uint16(1031); my.ErrorCode(err) {
	case deletesNothing: // such as ARCHIVE
		if err = l.empty(ctx, s, t); errors.Is(err, restore.ErrBeside) {
			err = errors.New("it has rows of an interrupted restore, and its engine deletes none: drop it, and --resume makes it again")
		}
	case remembers: // a system-versioned table
		if err = s.Exec(ctx, "DELETE FROM "+my.Ident(t.name())); err == nil {
			err = s.Exec(ctx, "DELETE HISTORY FROM "+my.Ident(t.name()))
		}
	}
	return err
}

// empty returns [restore.ErrBeside] if a table has rows.
func (l loader) empty(ctx context.Context, s *my.Session, t *table) error {
	row, err := s.Row(ctx, "SELECT EXISTS (SELECT 1 FROM "+my.Ident(t.name())+" LIMIT 1)")
	if err == nil && row[0] != "0" {
		err = restore.ErrBeside
	}
	return err
}

// remake makes the restore create missing tables again that the journal lists, with all that
// belongs to them.
func (l loader) remake(ctx context.Context) error {
	there, err := l.names(ctx, l.main, "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()")
	if err != nil {
		return err
	}
	for _, t := range l.tables {
		if there[t.name()] || !l.journal.Has(t.entry.String()) {
			continue
		}
		err := l.main.Exec(ctx, "SELECT 1 FROM "+my.Ident(t.name())+" LIMIT 0") // servers may fold names
		if err == nil {
			continue
		}
		if !my.Missing(err) {
			return err
		}
		l.Warn("table %s is gone since it was restored: it is restored again", t.name())
		steps := []string{t.entry.String(), t.rowsStep(), t.begunStep(), t.indexStep(), t.foreignStep()}
		for _, c := range t.chunks {
			steps = append(steps, c.Path)
		}
		if err := l.forget(ctx, append(steps, l.triggersOf(t)...)...); err != nil {
			return err
		}
	}
	return nil
}

// triggersOf returns the steps of a table's triggers that the journal lists.
func (l loader) triggersOf(t *table) []string {
	var steps []string
	for _, e := range l.kind(my.KindTrigger) {
		if e.Table == t.name() && l.journal.Has(e.String()) {
			steps = append(steps, e.String())
		}
	}
	return steps
}

// forget removes steps from the journal.
func (l loader) forget(ctx context.Context, steps ...string) error {
	for batch := range slices.Chunk(steps, 500) {
		literals := make([]string, len(batch))
		for i, step := range batch {
			l.journal.Forget(step)
			literals[i] = my.Literal(step)
		}
		if err := l.main.Exec(ctx, "DELETE FROM "+journalTable+" WHERE step IN ("+strings.Join(literals, ", ")+")"); err != nil {
			return err
		}
	}
	return nil
}

// errLost is why rows of a table with triggers are not loaded again.
var errLost = errors.New("the table has lost its rows since they were loaded, and its triggers are in place, which rows that are loaded now would set off")

// refill makes the restore load missing rows again that the journal lists: a restarted server has
// its MEMORY tables empty, and keeps the journal.
func (l loader) refill(ctx context.Context) error {
	for _, t := range l.tables {
		step := t.rowsStep()
		if t.safe || t.data == nil || t.data.Rows == 0 || !l.journal.Has(step) {
			continue
		}
		err := l.empty(ctx, l.main, t)
		if errors.Is(err, restore.ErrBeside) {
			continue
		}
		if err != nil {
			return err
		}
		if len(l.triggersOf(t)) > 0 {
			for _, c := range t.chunks {
				if err := l.failed(l.rowsError(t, c, errLost)); err != nil {
					return err
				}
			}
			continue
		}
		l.Warn("table %s has lost its rows, as one in memory does when the server ends: they are loaded again", t.name())
		if err := l.forget(ctx, step, t.begunStep()); err != nil {
			return err
		}
	}
	return nil
}

// besides refuses rows of tables that have triggers, and of those that have rows though none have
// been loaded. An interrupted run has made the triggers of a table some of whose rows had failed:
// those that are gone are made again.
func (l loader) besides(ctx context.Context) error {
	triggers, err := folded(ctx, l.database, "SELECT DISTINCT event_object_table FROM information_schema.triggers WHERE event_object_schema = DATABASE()")
	if err != nil {
		return fmt.Errorf("look for triggers: %w", err)
	}
	for _, t := range l.tables {
		if !l.opts.DataOnly && !l.journal.Has(t.entry.String()) || l.journal.Has(t.rowsStep()) {
			continue
		}
		left := slices.DeleteFunc(slices.Clone(t.chunks), func(c archive.Chunk) bool { return t.safe && l.journal.Has(c.Path) })
		if len(left) == 0 {
			continue
		}
		var why error
		switch {
		case triggers[l.fold(t.name())] && !l.opts.DataOnly:
			why = restore.ErrTriggered
		case t.safe && len(left) == len(t.chunks):
			if why = l.empty(ctx, l.main, t); my.ErrorCode(why) != 0 {
				why = nil // the load will say what is wrong
			}
		}
		if why != nil {
			return l.rowsError(t, left[0], why)
		}
		if err := l.forget(ctx, l.triggersOf(t)...); err != nil {
			return err
		}
	}
	return nil
}

// counted counts the bytes of rows that are read.
type counted struct {
	io.ReadCloser
	d *database
}

// Read reads and counts.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.d.moved.Add(int64(n))
	return n, err
}

// rows sends the rows of a chunk and checks that exactly these have been loaded, unchanged.
func (l loader) rows(ctx context.Context, s *my.Session, t *table, c archive.Chunk) (err error) {
	in, err := l.archive.Chunk(ctx, c.Path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	in = &counted{in, l.database}
	var got loadCount
	switch {
	case c.Content == "sql":
		err = l.statements(ctx, s, t, in, &got)
	case l.local || len(t.layout.Columns) == 0:
		err = l.infile(ctx, s, t, in, &got)
	default:
		err = l.inserts(ctx, s, t, in, &got)
	}
	if err != nil {
		return err
	}
	if got.rows != c.Rows {
		return fmt.Errorf("the server took %d rows, and the chunk has %d", got.rows, c.Rows)
	}
	return nil
}

type loadCount struct{ rows int64 }

// infileName is the file name that the server requests; it names nothing on this machine.
const infileName = "weir"

// infile loads rows with LOAD DATA LOCAL.
func (l loader) infile(ctx context.Context, s *my.Session, t *table, in io.Reader, got *loadCount) error {
	out, err := s.Run(ctx, t.layout.Load(infileName, my.Ident(t.name())), nil, in)
	if err != nil {
		return err
	}
	var deleted, skipped, warnings int64
	if _, err := fmt.Sscanf(out.Info, "Records: %d  Deleted: %d  Skipped: %d  Warnings: %d", &got.rows, &deleted, &skipped, &warnings); err != nil {
		return fmt.Errorf("the server's account of the load, %q: %w", out.Info, err)
	}
	if skipped > 0 || deleted > 0 || out.Warnings > 0 {
		return l.harmless(ctx, s, t, skipped+deleted)
	}
	return nil
}

// harmless checks warnings. LOAD DATA LOCAL turns what are errors elsewhere into warnings. Only
// the one about the error value of an ENUM is harmless: the value is loaded as it is.
func (l loader) harmless(ctx context.Context, s *my.Session, t *table, lost int64) error {
	var bad error
	const truncated = "1265"
	err := s.Query(ctx, "SHOW WARNINGS", func(row []string) error {
		if bad == nil && (row[1] != truncated || lost > 0 || !t.namesEnum(row[2])) {
			bad = fmt.Errorf("%s %s: %s", strings.ToLower(row[0]), row[1], row[2])
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("ask for warnings: %w", err)
	}
	if bad == nil && lost > 0 {
		bad = fmt.Errorf("%d rows were left out", lost)
	}
	if bad != nil {
		return fmt.Errorf("rows have not come in as they are: %w", bad)
	}
	l.Warn("table %s: it holds the error value of an ENUM, of which the server warns (error %s)", t.name(), truncated)
	return nil
}

// namesEnum reports whether a message of the server, in any language, names a column that is an
// ENUM.
func (t *table) namesEnum(message string) bool {
	return slices.ContainsFunc(t.plain.Items, func(item string) bool {
		name := my.ItemName(item)
		return strings.HasPrefix(item, my.Ident(name)+" enum(") && strings.Contains(message, "'"+name+"'")
	})
}

// statementBytes is the approximate length of an INSERT, if the server accepts it: longer ones
// gain nothing.
const statementBytes = 1 << 20

// inserts loads rows with multi-row INSERTs.
func (l loader) inserts(ctx context.Context, s *my.Session, t *table, in io.Reader, got *loadCount) error {
	ins := my.NewInserter(t.layout, my.Ident(t.name()), int(min(statementBytes, l.packet-1024)))
	run := func(sql []byte, rows int) error {
		out, err := s.Run(ctx, string(sql), nil, nil)
		if err != nil {
			return err
		}
		if out.Affected != uint64(rows) {
			return fmt.Errorf("the server took %d of %d rows", out.Affected, rows)
		}
		got.rows += int64(rows)
		if out.Warnings > 0 {
			return l.harmless(ctx, s, t, 0)
		}
		return nil
	}
	err := my.Lines(in, func(line []byte) error {
		sql, rows, err := ins.Line(line)
		if err != nil || rows == 0 {
			return err
		}
		return run(sql, rows)
	})
	if err != nil {
		return err
	}
	if sql, rows := ins.Rest(); rows > 0 {
		return run(sql, rows)
	}
	return nil
}

// statements runs the INSERT statements of a chunk that has them, one a line.
func (l loader) statements(ctx context.Context, s *my.Session, t *table, in io.Reader, got *loadCount) error {
	return my.Lines(in, func(line []byte) error {
		out, err := s.Run(ctx, strings.TrimSuffix(string(line), ";"), nil, nil)
		if err != nil {
			return err
		}
		got.rows += int64(out.Affected)
		if out.Warnings > 0 {
			return l.harmless(ctx, s, t, 0)
		}
		return nil
	})
}
