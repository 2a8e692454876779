package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/backup/archive"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
)

// state writes what is neither rows nor definitions: the values of sequences, and which
// materialized views are populated. Sequences do not obey snapshots; they are read after all
// rows, so that no value that a row uses is assigned twice.
func (d *database) state(ctx context.Context, w *worker) error {
	d.opts.Progress.Phase("sequences")
	if err := d.sequences(ctx, w); err != nil {
		return err
	}
	return d.views(ctx, w)
}

// fingerprint hashes the definitions that the main session shows. Some are not those of the
// snapshot but the current ones, and an object that is dropped meanwhile may cause an error:
// errMoved. The journal of a restore is left out, because it is not restored.
func (d *database) fingerprint(ctx context.Context, also func(pg.Aspect) error) (_ string, err error) {
	d.mainMu.Lock()
	defer d.mainMu.Unlock()
	if err := d.main.Exec(ctx, "SAVEPOINT fingerprint"); err != nil {
		return "", err
	}
	h := sha256.New()
	yield, end := pg.WriteAspects(h)
	err = d.main.Fingerprint(ctx, "weir_restore", func(a pg.Aspect) error {
		if err := also(a); err != nil {
			return err
		}
		return yield(a)
	})
	undo := "RELEASE SAVEPOINT fingerprint"
	if pg.ErrorCode(err) != "" {
		undo, err = "ROLLBACK TO SAVEPOINT fingerprint", fmt.Errorf("%w: %w", errMoved, err)
	}
	if d.main.Broken() == nil {
		err = errors.Join(err, d.main.Exec(ctx, undo), end())
	}
	return hex.EncodeToString(h.Sum(nil)), err
}

// catalogueInfo describes the chunk with all definitions in the server's own wording, with
// which a restored database is compared.
func (d *database) catalogueInfo() archive.ChunkInfo {
	return archive.ChunkInfo{Path: d.dir() + "/state/catalogue.jsonl", Kind: archive.KindState, Database: d.name, Content: "catalogue", Order: 3}
}

// catalogue writes that chunk and returns its fingerprint, or "" if it cannot be used for a
// comparison. Only the backup of a whole database has one.
func (d *database) catalogue(ctx context.Context) (print string, err error) {
	if !d.opts.Filter.Empty() || d.opts.SchemaOnly || d.opts.NoLargeObjects {
		return "", nil
	}
	err = d.writeChunk(ctx, d.catalogueInfo(), func(out io.Writer) error {
		yield, end := pg.WriteAspects(out)
		var err error
		print, err = d.fingerprint(ctx, yield)
		return errors.Join(err, end())
	})
	if errors.Is(err, errMoved) {
		return "", d.moved(err, "and a restored copy cannot be compared with them")
	}
	return print, err
}

// catalogueHolds reads all definitions again. If they differ from what catalogue has written,
// it is unknown which of them pg_dump has seen.
func catalogueHolds(ctx context.Context, d *database, before string) error {
	if before == "" {
		return nil
	}
	after, err := d.fingerprint(ctx, func(pg.Aspect) error { return nil })
	if err != nil && !errors.Is(err, errMoved) || err == nil && after == before {
		return err
	}
	d.warn("database %s: definitions changed while the backup was taken, and a restored copy cannot be compared with them", d.name)
	if err := d.w.Discard(ctx, d.catalogueInfo().Path); err != nil {
		return fmt.Errorf("remove %s: %w", d.catalogueInfo().Path, err)
	}
	return nil
}

// stillThere looks for functions and types that were dropped after the snapshot, in which
// pg_dump has seen them. pg_dump asks the server for their current definition, and if there is
// none it writes an incomplete one.
func (d *database) stillThere(ctx context.Context) error {
	d.mainMu.Lock()
	defer d.mainMu.Unlock()
	var gone []string
	err := d.main.Query(ctx, `SELECT 'function ' || pg_catalog.format('%I.%I', n.nspname, p.proname)
FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
WHERE p.oid >= 16384 AND n.nspname !~ '^pg_' AND pg_catalog.pg_get_function_arguments(p.oid) IS NULL
UNION ALL SELECT 'type ' || pg_catalog.format('%I.%I', n.nspname, t.typname)
FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
WHERE t.oid >= 16384 AND n.nspname !~ '^pg_' AND pg_catalog.format_type(t.oid, NULL) LIKE '%???%'
AND t.typname NOT LIKE '%???%' ORDER BY 1`, func(row []string) error {
		gone = append(gone, row[0])
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for what was dropped meanwhile: %w", err)
	}
	if len(gone) == 0 {
		return nil
	}
	const most = 5
	return d.moved(fmt.Errorf("%w: %s", errMoved, strings.Join(gone[:min(most, len(gone))], ", ")),
		"and these were dropped, so that their definitions in the backup are not whole")
}

// sequenceBatch is the number of sequences that one statement reads.
const sequenceBatch = 200

// sequences writes a setval for each sequence in the definitions, and for those that extensions
// declare as configuration.
func (d *database) sequences(ctx context.Context, w *worker) error {
	var names [][2]string
	for _, e := range d.toc.Entries {
		if e.Desc == "SEQUENCE" {
			names = append(names, [2]string{e.Namespace, e.Tag})
		}
	}
	if err := w.open(ctx); err != nil {
		return err
	}
	if !d.opts.Filter.Selective() {
		err := w.s.Query(ctx, `SELECT n.nspname, c.relname FROM pg_catalog.pg_extension e
JOIN pg_catalog.pg_class c ON c.oid = ANY (e.extconfig) AND c.relkind = 'S'
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace ORDER BY 1, 2`, func(row []string) error {
			names = append(names, [2]string{row[0], row[1]})
			return nil
		})
		if err != nil {
			return fmt.Errorf("list sequences of extensions: %w", err)
		}
	}
	if len(names) == 0 {
		return nil
	}
	info := archive.ChunkInfo{Path: d.dir() + "/state/sequences.sql", Kind: archive.KindState, Database: d.name, Content: "sql", Order: 1}
	return d.writeChunk(ctx, info, func(out io.Writer) error {
		for batch := range slices.Chunk(names, sequenceBatch) {
			if err := d.sequenceBatch(ctx, w, out, batch); err != nil {
				return err
			}
		}
		return nil
	})
}

func (d *database) sequenceBatch(ctx context.Context, w *worker, out io.Writer, names [][2]string) error {
	parts := make([]string, len(names))
	for i, n := range names {
		parts[i] = fmt.Sprintf("SELECT %d, last_value, is_called FROM %s", i, pg.Qualified(n[0], n[1]))
	}
	return w.read(ctx, func(s *pg.Session) error {
		var b strings.Builder
		err := s.Query(ctx, strings.Join(parts, " UNION ALL ")+" ORDER BY 1", func(row []string) error {
			n := names[pg.Number(row[0])]
			called := "true"
			if row[2] != "t" {
				called = "false"
			}
			fmt.Fprintf(&b, "SELECT pg_catalog.setval(%s, %s, %s);\n", pg.Literal(pg.Qualified(n[0], n[1])), row[1], called)
			return nil
		})
		if again(err) { // a sequence that no table owns is not locked
			return fmt.Errorf("%w: %w", errMoved, err)
		}
		if err != nil {
			return fmt.Errorf("read sequences: %w", err)
		}
		_, err = io.WriteString(out, b.String())
		return err
	})
}

// views writes a REFRESH for each populated materialized view, in the order of their
// dependencies.
func (d *database) views(ctx context.Context, w *worker) error {
	meant := map[[2]string]bool{}
	for _, e := range d.toc.Entries {
		if e.Desc == "MATERIALIZED VIEW" {
			meant[[2]string{e.Namespace, e.Tag}] = true
		}
	}
	if len(meant) == 0 {
		return nil
	}
	type view struct {
		name    [2]string
		needs   []string
		written bool
	}
	views := map[string]*view{}
	var order []string
	err := w.read(ctx, func(s *pg.Session) error {
		return s.Query(ctx, `
WITH RECURSIVE uses AS (
  SELECT r.ev_class AS view, d.refobjid AS used FROM pg_catalog.pg_rewrite r
  JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass AND d.objid = r.oid
    AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid <> r.ev_class
), needs AS (
  SELECT m.oid AS view, u.used FROM pg_catalog.pg_class m JOIN uses u ON u.view = m.oid WHERE m.relkind = 'm'
  UNION SELECT n.view, u.used FROM needs n JOIN uses u ON u.view = n.used
)
SELECT c.oid, s.nspname, c.relname,
       ARRAY(SELECT n.used FROM needs n JOIN pg_catalog.pg_class u ON u.oid = n.used AND u.relkind = 'm' WHERE n.view = c.oid)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace
WHERE c.relkind = 'm' AND c.relispopulated ORDER BY 2, 3`, func(row []string) error {
			name := [2]string{row[1], row[2]}
			if meant[name] {
				views[row[0]] = &view{name: name, needs: pg.ParseArray(row[3])}
				order = append(order, row[0])
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("list materialized views: %w", err)
	}
	var b strings.Builder
	var write func(v *view)
	write = func(v *view) { // a view cannot depend on itself through others
		if v.written {
			return
		}
		v.written = true
		for _, oid := range v.needs {
			if n := views[oid]; n != nil {
				write(n)
			}
		}
		b.WriteString("REFRESH MATERIALIZED VIEW " + pg.Qualified(v.name[0], v.name[1]) + ";\n")
	}
	for _, oid := range order {
		write(views[oid])
	}
	if b.Len() == 0 {
		return nil
	}
	info := archive.ChunkInfo{Path: d.dir() + "/state/refresh.sql", Kind: archive.KindState, Database: d.name, Content: "sql", Order: 2}
	return d.writeChunk(ctx, info, func(out io.Writer) error {
		_, err := io.WriteString(out, b.String())
		return err
	})
}
