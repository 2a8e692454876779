package postgres

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/backup/guard"
)

// schemaAttempts is how often the backup of a database is attempted if definitions change while
// pg_dump reads them.
const schemaAttempts = 3

// database is the backup of one database.
type database struct {
	*runner
	name    string
	pool    bulk.WorkerPool
	read    atomic.Int64 // bytes of rows, for the number of workers
	attempt int          // 1 to schemaAttempts

	workers  []worker // by number
	main     *pg.Session
	mainMu   sync.Mutex // locked by the goroutine that uses main
	noPublic bool       // it has no schema public
	snapshot string     // for SET TRANSACTION SNAPSHOT
	position archive.Position
	tables   []*table
	content  []*tableData        // tables whose rows are in the backup
	toc      *pg.TOC             // without what is read while pg_dump runs
	same     map[string]string   // attributes that most chunks share; never modified
	columns  map[string][]string // lists of columns that tables share
}

// tableData are the rows of a table: what is to be read and what was read.
type tableData struct {
	*table
	parts   int
	binary  bool
	perPart int64 // pages of each part except the last; 0: not split

	mu        sync.Mutex // guards the fields below
	sum       pg.RowSum
	rows      int64
	bytesRead int64
	busy      time.Duration
	kept      int
}

// dir returns the directory of the database's chunks.
func (d *database) dir() string { return path.Dir(path.Dir(archive.SchemaPath(d.name, "x"))) }

// backup reads the database. If definitions change meanwhile, it starts over; chunks that are
// still valid then are kept, as in a resumed backup.
func (d *database) backup(ctx context.Context) error {
	for d.attempt = 1; ; d.attempt++ {
		err := d.once(ctx)
		if !errors.Is(err, errMoved) || d.attempt == schemaAttempts {
			return err
		}
		d.disclaim(d.name)
	}
}

// moved makes the backup of the database start over because of err, which is errMoved. After
// the last attempt, it warns about what err costs instead.
func (d *database) moved(err error, costs string) error {
	if d.attempt < schemaAttempts {
		return err
	}
	d.warn("database %s: definitions changed while the backup was taken, %s: %v", d.name, costs, err)
	return nil
}

func (d *database) once(ctx context.Context) (err error) {
	defer func() {
		if d.main != nil {
			err = errors.Join(err, d.main.Close())
		}
	}()
	d.workers = make([]worker, max(d.pool.Start, d.pool.Most))
	for i := range d.workers {
		d.workers[i].d = d
	}
	defer func() {
		for i := range d.workers {
			err = errors.Join(err, d.workers[i].close())
		}
	}()
	d.opts.Progress.Phase("lock")
	if err := d.start(ctx); err != nil {
		return err
	}
	if err := d.plan(ctx); err != nil {
		return err
	}
	d.opts.Progress.Phase("data")
	// pg_dump reads the definitions on the main session while workers read rows. Sequences and
	// views need the result.
	jobs := []bulk.Job{}
	if !d.opts.SchemaOnly {
		jobs = d.dataJobs()
		blobs, err := d.blobJobs(ctx)
		if err != nil {
			return err
		}
		jobs = append(jobs, blobs...)
	}
	err = d.together(ctx, jobs)
	// TRUNCATE empties a table also for older snapshots: only the locks guarantee that the rows
	// were complete. Without them, a table may also have been dropped, which would cause an
	// error about the table.
	held := d.main.Exec(ctx, "SELECT 1") // not used by others any more
	if held != nil && (err == nil || pg.ErrorCode(held) == replayConflict) {
		return fmt.Errorf("hold the locks until all rows are read: %w", held)
	}
	if err != nil {
		return err
	}
	d.tables = nil // those without rows are not needed any more, and there may be many
	if !d.opts.SchemaOnly {
		return d.state(ctx, &d.workers[0])
	}
	return nil
}

// together runs the jobs while the main session reads the definitions.
func (d *database) together(ctx context.Context, jobs []bulk.Job) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	definitions := make(chan error, 1)
	go func() {
		err := guard.Run("definitions of database "+d.name, func() error { return d.definitions(ctx) })
		if err != nil {
			cancel(err)
		}
		definitions <- err
	}()
	stats := bulk.WorkerPoolStats{Name: d.name}
	pool := d.pool
	pool.Moved, pool.Stats = d.read.Load, &stats
	pool.Rest = func(n int) error { return d.workers[n].close() }
	err := pool.Run(ctx, jobs)
	if err != nil {
		cancel(err)
	}
	d.mu.Lock()
	d.result.Workers = append(d.result.Workers, stats)
	d.mu.Unlock()
	if schemaErr := <-definitions; err == nil || errors.Is(err, schemaErr) {
		return schemaErr
	}
	return err
}

// plan decides which tables' rows are read, and in how many parts.
func (d *database) plan(ctx context.Context) error {
	d.content = nil
	if d.opts.SchemaOnly {
		return nil
	}
	without, err := d.dataless(ctx)
	if err != nil {
		return err
	}
	var total int64
	for _, t := range d.tables {
		if t.partitioned || without[t.oid] || t.unlogged && d.opts.NoUnlogged {
			continue
		}
		if t.unlogged && d.standby {
			d.warn("database %s: rows of unlogged table %s are left out, for a standby has none", d.name, t.name())
			continue
		}
		td := &tableData{table: t, parts: 1, binary: d.opts.Binary && t.portable}
		td.sum.Binary = td.binary
		d.content = append(d.content, td)
		total += t.bytes
	}
	chunk := d.opts.ChunkFor(total)
	for _, t := range d.content {
		d.split(t, chunk)
		d.opts.Progress.Expect(t.bytes, int64(t.parts))
	}
	return nil
}

// split divides a large table into ranges of pages. A resumed backup divides it as the
// interrupted one did, so that its chunks can be used.
func (d *database) split(t *tableData, chunk int64) {
	if !t.heap || t.condition != "" || t.pages < 2 || d.server.Number < 140000 {
		return // before PostgreSQL 14, reading a range of pages reads the whole table
	}
	if c, ok := d.w.Done(d.dataPath(t, 1)); ok {
		if n, err := strconv.ParseInt(c.Attributes[attrPages], 10, 64); err == nil && n > 0 {
			t.divide(n)
		}
		return
	}
	if t.bytes <= chunk+chunk/2 {
		return
	}
	// The size of a part includes values in TOAST.
	t.divide(max(1, int64(float64(t.pages)*float64(chunk)/float64(t.bytes))))
}

func (t *tableData) divide(perPart int64) {
	t.perPart = perPart
	t.parts = int(max(1, (t.pages+perPart-1)/perPart))
}

// describe returns the database's part of the manifest.
func (d *database) describe() archive.Database {
	out := archive.Database{Name: d.name, Attributes: map[string]string{
		"snapshot": d.position.Snapshot,
		"lsn":      d.position.LSN,
		"time":     d.position.Time.Format(time.RFC3339Nano),
	}}
	out.Attributes[pg.AttrCatalogue] = pg.CatalogueEdition
	if d.noPublic {
		out.Attributes[pg.AttrNoPublic] = "true"
	}
	for _, t := range d.content {
		m := archive.Table{Schema: t.schema, Name: t.relname, Columns: t.columns}
		if d.opts.Checksums {
			m.Checksum = t.sum.String()
		}
		if t.condition != "" {
			m.Attributes = map[string]string{"condition": t.condition}
		}
		if t.root != nil {
			m.Attributes = map[string]string{"root_schema": t.root[0], "root_table": t.root[1]}
		}
		out.Tables = append(out.Tables, m)
	}
	return out
}

func (d *database) stats() []backup.TableStats {
	var out []backup.TableStats
	for _, t := range d.content {
		out = append(out, backup.TableStats{
			Database: d.name, Schema: t.schema, Table: t.relname,
			Chunks: t.parts, Rows: t.rows, Bytes: t.bytesRead, Busy: t.busy, Kept: t.kept,
		})
	}
	return out
}
