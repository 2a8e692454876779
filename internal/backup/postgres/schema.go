package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/weirdb/weir/internal/backup/archive"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
)

// definitions makes pg_dump write the definitions that the snapshot shows, and stores them in
// two forms: plain SQL in two sections, for psql, and the table of contents, for a restore that
// runs it object by object.
func (d *database) definitions(ctx context.Context) (err error) {
	end := d.opts.Progress.Begin("definitions of " + d.name)
	d.opts.Progress.Expect(0, 1)
	defer end()
	f, err := os.CreateTemp(d.opts.TempDir, "weir-definitions-*")
	if err != nil {
		return fmt.Errorf("keep definitions: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	// The file is not needed by name, and its space is freed when the process ends.
	if err := os.Remove(f.Name()); err != nil {
		return fmt.Errorf("keep definitions: %w", err)
	}
	fingerprint, err := d.catalogue(ctx)
	if err != nil {
		return err
	}
	if err := d.runDump(ctx, f); err != nil {
		return err
	}
	if err := d.stillThere(ctx); err != nil {
		return err
	}
	if err := catalogueHolds(ctx, d, fingerprint); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read definitions: %w", err)
	}
	info := archive.ChunkInfo{Path: d.dir() + "/schema/toc.jsonl", Kind: archive.KindSchema, Database: d.name, Content: "toc"}
	if err := d.writeChunk(ctx, info, func(out io.Writer) error { return d.contents(f, out) }); err != nil {
		return err
	}
	for i, section := range []pg.Section{pg.PreData, pg.PostData} {
		info := archive.ChunkInfo{
			Path: archive.SchemaPath(d.name, string(section)), Kind: archive.KindSchema, Database: d.name,
			Content: "sql", Order: i + 1,
		}
		args := []string{"--section=" + string(section), "--file=-"}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("read definitions: %w", err)
		}
		if err := d.writeTool(ctx, info, d.reload, d.name, args, f); err != nil {
			return err
		}
	}
	return nil
}

// contents writes the table of contents, and keeps the part that is needed after the rows. It
// compares pg_dump's tables with those whose rows are read, so that nothing is left out because
// two programs read the catalogs differently.
func (d *database) contents(dump io.Reader, out io.Writer) error {
	known := make(map[[2]string]bool, len(d.tables))
	for _, t := range d.tables {
		known[[2]string{t.schema, t.relname}] = true
	}
	var kept []pg.Entry
	toc, err := pg.ConvertTOC(dump, out, func(e *pg.Entry) error {
		switch e.Desc {
		case "TABLE":
			if !known[[2]string{e.Namespace, e.Tag}] {
				return fmt.Errorf("pg_dump has table %s.%s, which is not read", e.Namespace, e.Tag)
			}
		case "SEQUENCE", "MATERIALIZED VIEW":
			kept = append(kept, pg.Entry{Desc: e.Desc, Namespace: e.Namespace, Tag: e.Tag})
		}
		return readable(e)
	})
	if errors.Is(err, pg.ErrTOC) {
		return fmt.Errorf("%w (%s is PostgreSQL %d)", err, d.dump.Path, d.dump.Major)
	}
	if err != nil {
		return err
	}
	d.toc = toc
	d.toc.Entries = kept
	return nil
}

// readable rejects definitions that are not UTF-8, which may exist in a database in SQL_ASCII:
// the manifest and the table of contents are JSON, which would corrupt them.
func readable(e *pg.Entry) error {
	for _, s := range []string{e.Namespace, e.Tag, e.Owner, e.Create, e.Drop} {
		if !utf8.ValidString(s) {
			return fmt.Errorf("the definition of %q is not UTF-8, which a database in SQL_ASCII does not ensure: rename or redefine it", e.Name())
		}
	}
	return nil
}

// runDump runs pg_dump on the main session, with the locks and the snapshot of the rows. With a
// session of its own it would have to queue for its locks behind a session that waits to
// truncate or alter a table, and that waits for ours; and a program that truncates a table
// again and again would prevent any backup from completing.
func (d *database) runDump(ctx context.Context, out io.Writer) error {
	socket, err := pg.ListenFor(ctx, d.main, &d.mainMu, d.opts.TempDir)
	if err != nil {
		return err
	}
	args := []string{"--format=custom", "--compress=0", "--schema-only", "--no-password", "--encoding=" + d.main.Encoding()}
	if d.opts.LockWait > 0 {
		args = append(args, fmt.Sprintf("--lock-wait-timeout=%d", d.opts.LockWait.Milliseconds()))
	}
	f := d.opts.Filter
	for _, o := range []struct {
		flag     string
		patterns []string
	}{{"--schema=", f.Schemas}, {"--exclude-schema=", f.ExcludeSchemas}, {"--table=", f.Tables}, {"--exclude-table=", f.ExcludeTables}} {
		for _, p := range o.patterns {
			args = append(args, o.flag+p)
		}
	}
	err = d.dump.RunBehind(ctx, socket, args, out)
	err = errors.Join(err, socket.Close())
	if broken := d.main.Broken(); broken != nil {
		return errors.Join(broken, err)
	}
	var failure *pg.ToolFailure
	if !errors.As(err, &failure) {
		return err
	}
	// Objects that are dropped meanwhile, such as a view, appear by their OID in the error, or
	// as an empty text.
	for _, said := range []string{"cache lookup failed", "could not open relation with OID", "appears to be empty", "returned no data"} {
		if strings.Contains(failure.Stderr, said) {
			return fmt.Errorf("%w: %w", errMoved, err)
		}
	}
	return err
}

// writeTool writes a chunk with the output of a tool.
func (r *runner) writeTool(ctx context.Context, info archive.ChunkInfo, tool pg.Tool, db string, args []string, in io.Reader) error {
	return r.writeChunk(ctx, info, func(w io.Writer) error {
		return tool.Run(ctx, r.opts.DSN, db, args, in, w)
	})
}

// writeChunk writes a chunk that is cheap to produce, replacing what an earlier run may have
// left.
func (r *runner) writeChunk(ctx context.Context, info archive.ChunkInfo, fill func(io.Writer) error) error {
	r.claim(info.Database, info.Path)
	return r.w.Replace(ctx, info, fill)
}
