package mysql

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/weirdb/weir/internal/archive"
	my "github.com/weirdb/weir/internal/bulk/mysql"
)

// definitions writes the definitions of all databases: a table of contents for a
// restore, and scripts that people and the mysql client read.
func (r *runner) definitions(ctx context.Context) error {
	for _, d := range r.databases {
		end := r.opts.Progress.Begin("definitions of " + d.name)
		r.opts.Progress.Expect(0, 1)
		err := r.define(ctx, d)
		end()
		if err != nil {
			return fmt.Errorf("back up database %s: %w", d.name, err)
		}
	}
	return nil
}

func (r *runner) define(ctx context.Context, d *database) error {
	// In its own database, the server names things without it.
	if err := r.main.Exec(ctx, "USE "+my.Ident(d.name)); err != nil {
		return fmt.Errorf("use it: %w", err)
	}
	for _, step := range []func(context.Context, *database) error{
		r.defineDatabase, r.defineSequences, r.defineTables, r.defineRoutines, r.defineViews, r.defineTriggers, r.defineEvents,
	} {
		if err := step(ctx, d); err != nil {
			return err
		}
	}
	text, err := json.MarshalIndent(d.toc, "", " ")
	if err != nil {
		return fmt.Errorf("write table of contents: %w", err)
	}
	dir := path.Dir(archive.SchemaPath(d.name, "x"))
	for _, c := range []struct {
		info archive.ChunkInfo
		text string
	}{
		{archive.ChunkInfo{Path: dir + "/toc.json", Content: "toc"}, string(text)},
		{archive.ChunkInfo{Path: archive.SchemaPath(d.name, "tables"), Content: "sql", Order: 1}, script(d.toc.Of(my.KindDatabase, my.KindSequence, my.KindTable))},
		{archive.ChunkInfo{Path: archive.SchemaPath(d.name, "objects"), Content: "sql", Order: 2}, script(d.toc.Of(
			my.KindFunction, my.KindProcedure, my.KindPackage, my.KindBody, my.KindView, my.KindTrigger, my.KindEvent))},
	} {
		c.info.Kind, c.info.Database = archive.KindSchema, d.name
		err := r.writeChunk(ctx, c.info, func(w io.Writer) error {
			_, err := io.WriteString(w, c.text)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// script writes definitions as the mysql client reads them.
func script(entries []*my.Entry) string {
	var b strings.Builder
	b.WriteString("SET NAMES utf8mb4;\nSET time_zone = '+00:00';\nSET foreign_key_checks = 0;\n")
	for _, e := range entries {
		if e.Kind == my.KindDatabase {
			fmt.Fprintf(&b, "-- %s\n", strings.ReplaceAll(e.Create, "\n", " "))
			continue
		}
		if set := e.Setting(); set != "" {
			fmt.Fprintf(&b, "%s;\n", set)
		}
		fmt.Fprintf(&b, "DELIMITER ;;\n%s ;;\nDELIMITER ;\n", e.Create)
		if e.Setting() != "" {
			b.WriteString("SET NAMES utf8mb4;\nSET time_zone = '+00:00';\n")
		}
	}
	return b.String()
}

// show runs a SHOW CREATE and returns its row by lower-case names.
func (r *runner) show(ctx context.Context, sql, column string) (map[string]string, error) {
	var out map[string]string
	err := r.main.QueryNamed(ctx, sql, func(row map[string]string) error {
		out = row
		return nil
	})
	if err == nil && out[column] == "" {
		err = errors.New("the server shows no definition: the account may not read it")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", sql, err)
	}
	return out, nil
}

func (r *runner) defineDatabase(ctx context.Context, d *database) error {
	row, err := r.show(ctx, "SHOW CREATE DATABASE "+my.Ident(d.name), "create database")
	if err != nil {
		return err
	}
	d.toc.Entries = append(d.toc.Entries, my.Entry{Kind: my.KindDatabase, Name: d.name, Create: row["create database"]})
	more, err := r.main.Row(ctx, "SELECT @@character_set_database, @@collation_database")
	if err != nil {
		return fmt.Errorf("ask for its character set: %w", err)
	}
	d.attrs = map[string]string{"charset": more[0], "collation": more[1]}
	return nil
}

func (r *runner) defineSequences(ctx context.Context, d *database) error {
	for _, name := range d.seqs {
		row, err := r.show(ctx, "SHOW CREATE SEQUENCE "+my.Ident(name), "create table")
		if err != nil {
			return err
		}
		d.toc.Entries = append(d.toc.Entries, my.Entry{Kind: my.KindSequence, Name: name, Create: row["create table"]})
	}
	return nil
}

func (r *runner) defineTables(ctx context.Context, d *database) error {
	for _, t := range d.tables {
		row, err := r.show(ctx, "SHOW CREATE TABLE "+my.Ident(t.name), "create table")
		if err != nil {
			return err
		}
		d.toc.Entries = append(d.toc.Entries, my.Entry{Kind: my.KindTable, Name: t.name, Create: row["create table"]})
	}
	return nil
}

// entryOf makes an entry of a SHOW CREATE's row.
func entryOf(kind my.Kind, name, create string, row map[string]string) my.Entry {
	e := my.Entry{Kind: kind, Name: name, Create: create, Client: row["character_set_client"], Collation: row["collation_connection"], Zone: row["time_zone"]}
	if mode, ok := row["sql_mode"]; ok {
		e.Mode = &mode
	}
	return e
}

func (r *runner) defineRoutines(ctx context.Context, d *database) error {
	if r.opts.Filter.Selective() {
		return nil
	}
	type routine struct{ kind, name string }
	var found []routine
	err := r.main.Query(ctx, `SELECT routine_type, routine_name FROM information_schema.routines WHERE routine_schema = `+my.Literal(d.name)+
		` ORDER BY routine_type, routine_name`, func(row []string) error {
		found = append(found, routine{row[0], row[1]})
		return nil
	})
	if err != nil {
		return fmt.Errorf("list routines: %w", err)
	}
	for _, f := range found {
		column := "create " + strings.ToLower(f.kind)
		row, err := r.show(ctx, "SHOW CREATE "+f.kind+" "+my.Ident(f.name), column)
		if err != nil {
			return err
		}
		d.toc.Entries = append(d.toc.Entries, entryOf(my.Kind(strings.ToLower(f.kind)), f.name, row[column], row))
	}
	return nil
}

// defineViews writes views after those whose names they hold. That may put one
// after another one that it does not need, but never before one that it does.
func (r *runner) defineViews(ctx context.Context, d *database) error {
	entries := map[string]my.Entry{}
	for _, name := range d.views {
		row, err := r.show(ctx, "SHOW CREATE VIEW "+my.Ident(name), "create view")
		if err != nil {
			return err
		}
		entries[name] = entryOf(my.KindView, name, row["create view"], row)
	}
	state := map[string]bool{} // begun, so that a circle of names ends
	var write func(name string)
	write = func(name string) {
		if state[name] {
			return
		}
		state[name] = true
		for _, other := range d.views {
			if other != name && strings.Contains(entries[name].Create, my.Ident(other)) {
				write(other)
			}
		}
		d.toc.Entries = append(d.toc.Entries, entries[name])
	}
	for _, name := range d.views {
		write(name)
	}
	return nil
}

func (r *runner) defineTriggers(ctx context.Context, d *database) error {
	meant := map[string]bool{}
	for _, t := range d.tables {
		meant[t.name] = true
	}
	type trigger struct{ name, table string }
	var found []trigger
	err := r.main.Query(ctx, `SELECT trigger_name, event_object_table FROM information_schema.triggers WHERE trigger_schema = `+my.Literal(d.name)+
		` ORDER BY event_object_table, action_timing, event_manipulation, action_order`, func(row []string) error {
		if meant[row[1]] {
			found = append(found, trigger{row[0], row[1]})
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list triggers: %w", err)
	}
	for _, f := range found {
		const column = "sql original statement"
		row, err := r.show(ctx, "SHOW CREATE TRIGGER "+my.Ident(f.name), column)
		if err != nil {
			return err
		}
		e := entryOf(my.KindTrigger, f.name, row[column], row)
		e.Table = f.table
		d.toc.Entries = append(d.toc.Entries, e)
	}
	return nil
}

func (r *runner) defineEvents(ctx context.Context, d *database) error {
	if r.opts.Filter.Selective() {
		return nil
	}
	var names []string
	err := r.main.Query(ctx, `SELECT event_name FROM information_schema.events WHERE event_schema = `+my.Literal(d.name)+` ORDER BY event_name`, func(row []string) error {
		names = append(names, row[0])
		return nil
	})
	if err != nil {
		return fmt.Errorf("list events: %w", err)
	}
	for _, name := range names {
		const column = "create event"
		row, err := r.show(ctx, "SHOW CREATE EVENT "+my.Ident(name), column)
		if err != nil {
			return err
		}
		d.toc.Entries = append(d.toc.Entries, entryOf(my.KindEvent, name, row[column], row))
	}
	return nil
}

// sequences writes where sequences stand. They obey no view, and are read after
// all rows, so that no value that a row uses is given out twice.
func (r *runner) sequences(ctx context.Context) error {
	for _, d := range r.databases {
		var b strings.Builder
		for _, name := range d.seqs {
			row, err := r.main.Row(ctx, "SELECT next_not_cached_value FROM "+my.Qualified(d.name, name))
			if err != nil {
				return fmt.Errorf("read sequence %s.%s: %w", d.name, name, err)
			}
			fmt.Fprintf(&b, "SELECT SETVAL(%s, %s, 0);\n", my.Ident(name), row[0])
		}
		if b.Len() == 0 {
			continue
		}
		info := archive.ChunkInfo{Path: my.SequencesPath(d.name), Kind: archive.KindState, Database: d.name, Content: "sql", Order: 1}
		err := r.writeChunk(ctx, info, func(w io.Writer) error {
			_, err := io.WriteString(w, b.String())
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// writeChunk writes a chunk that is cheap to make, in place of what an earlier run
// may have left.
func (r *runner) writeChunk(ctx context.Context, info archive.ChunkInfo, fill func(io.Writer) error) error {
	r.claim(info.Path)
	if _, ok := r.w.Done(info.Path); ok {
		if err := r.w.Discard(ctx, info.Path); err != nil {
			return fmt.Errorf("write %s again: %w", info.Path, err)
		}
	}
	chunk, err := r.w.Chunk(ctx, info)
	if err != nil {
		return fmt.Errorf("write %s: %w", info.Path, err)
	}
	if err := fill(chunk); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", info.Path, err), chunk.Abort())
	}
	if err := chunk.Close(); err != nil {
		return fmt.Errorf("write %s: %w", info.Path, err)
	}
	return nil
}
