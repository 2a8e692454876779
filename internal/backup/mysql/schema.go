package mysql

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/weirdb/weir/internal/backup/archive"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
)

// A definer writes the definitions of the databases' objects.
type definer struct{ *runner }

// definitions writes the definitions of all databases: a table of contents for a restore, and
// scripts for people and the mysql client.
func (r definer) definitions(ctx context.Context) error {
	for _, d := range r.databases {
		end := r.opts.Progress.Begin("definitions of " + d.name)
		r.opts.Progress.Expect(0, 1)
		err := r.define(ctx, d)
		end()
		if err != nil {
			return fmt.Errorf("back up database %s: %w", d.name, err)
		}
	}
	return r.settle(ctx)
}

// settle records where the binary log ended when all definitions had been read. Those of views,
// routines, events and sequences are from moments between the position of the rows and this
// one.
func (r definer) settle(ctx context.Context) error {
	var at archive.Position
	if r.position.Binlog == "" {
		return nil
	}
	err := logEnd(ctx, r.main, &at)
	if my.Denied(err) {
		return nil // the view of the rows came with its position
	}
	if err != nil {
		return fmt.Errorf("ask for the position in the binary log: %w", err)
	}
	r.settled = ManifestPosition(at)
	return nil
}

func (r definer) define(ctx context.Context, d *database) error {
	// If it is the current database, the server omits its name.
	if err := r.main.Exec(ctx, "USE "+my.Ident(d.name)); err != nil {
		return fmt.Errorf("use it: %w", err)
	}
	for _, step := range []func(context.Context, *database) error{
		r.defineDatabase, r.defineSequences, r.defineTables, r.defineLibraries, r.defineRoutines, r.defineViews, r.defineTriggers, r.defineEvents,
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
			my.KindLibrary, my.KindFunction, my.KindProcedure, my.KindPackage, my.KindBody, my.KindView, my.KindTrigger, my.KindEvent))},
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

// script formats definitions for the mysql client.
func script(entries []*my.Entry) string {
	var b strings.Builder
	// The first line keeps MariaDB's client from running system commands, which text of a
	// database could otherwise request. For others it is a comment.
	b.WriteString("/*M!999999\\- enable the sandbox mode */\nSET NAMES utf8mb4;\nSET time_zone = '+00:00';\nSET foreign_key_checks = 0;\n")
	for _, e := range entries {
		if e.Kind == my.KindDatabase {
			fmt.Fprintf(&b, "-- %s\n", strings.ReplaceAll(e.Create, "\n", " "))
			continue
		}
		if set := e.Setting(); set != "" {
			fmt.Fprintf(&b, "%s;\n", set)
		}
		end := ";;"
		for n := 1; strings.Contains(e.Create, end); n++ {
			end = fmt.Sprintf("$end%d$", n)
		}
		fmt.Fprintf(&b, "DELIMITER %s\n%s %s\nDELIMITER ;\n", end, e.Create, end)
		if e.Setting() != "" {
			b.WriteString("SET NAMES utf8mb4;\nSET time_zone = '+00:00';\n")
		}
	}
	return b.String()
}

func (r definer) defineDatabase(ctx context.Context, d *database) error {
	if err := r.keep(ctx, d, my.KindDatabase, d.name); err != nil {
		return err
	}
	more, err := r.main.Row(ctx, "SELECT @@character_set_database, @@collation_database")
	if err != nil {
		return fmt.Errorf("ask for its character set: %w", err)
	}
	d.attrs = map[string]string{"charset": more[0], "collation": more[1]}
	return nil
}

func (r definer) defineSequences(ctx context.Context, d *database) error {
	kept := d.seqs[:0]
	for _, name := range d.seqs {
		there, err := r.keepListed(ctx, d, my.KindSequence, name)
		if err != nil {
			return err
		}
		if there {
			kept = append(kept, name)
		}
	}
	d.seqs = kept
	return nil
}

func (r definer) defineTables(ctx context.Context, d *database) error {
	for _, t := range d.tables {
		if err := r.keep(ctx, d, my.KindTable, t.name); err != nil {
			return err
		}
		if e := d.toc.Entries[len(d.toc.Entries)-1]; !strings.Contains(e.Create, "?") {
			continue // it shows what the server's lists hide
		}
		for _, c := range t.columns {
			if c.mayHide() {
				r.warn("table %s: the server shows a value or the default of column %s with a question mark; if it is another character there, one beyond U+FFFF, the copy has the question mark in its place, for the server shows no such character in a definition",
					t.fullName(), my.Ident(c.name))
			}
		}
	}
	return nil
}

// keep reads a definition into the table of contents.
func (r definer) keep(ctx context.Context, d *database, kind my.Kind, name string) error {
	e, err := r.main.Show(ctx, kind, name)
	if err == nil {
		r.add(d, e)
	}
	return err
}

func (r definer) add(d *database, e my.Entry) {
	if !utf8.ValidString(e.Create) {
		r.warn("%s %s.%s: its definition is not UTF-8, and the copy has other characters where it is not: redefine it", e.Kind, d.name, e.Name)
	}
	d.toc.Entries = append(d.toc.Entries, e)
}

// keepListed reads the definition of an object that is not pinned, and omits one that was
// dropped since it was listed.
func (r definer) keepListed(ctx context.Context, d *database, kind my.Kind, name string) (there bool, err error) {
	e, there, err := r.show(ctx, d, kind, name)
	if there && err == nil {
		r.add(d, e)
	}
	return there, err
}

// show reads the definition of an object that is not pinned. there is false if it was dropped
// since it was listed; if it was created again meanwhile, show reads it again.
func (r definer) show(ctx context.Context, d *database, kind my.Kind, name string) (e my.Entry, there bool, err error) {
	for range 3 {
		e, err = r.main.Show(ctx, kind, name)
		if !my.Missing(err) {
			break
		}
		if listed, err := r.listed(ctx, d, kind, name); err != nil {
			return e, false, err
		} else if !listed {
			r.warn("%s %s.%s was dropped while the backup was taken, and is not in it", kind, d.name, name)
			return e, false, nil
		}
	}
	return e, true, err
}

// listed reports whether the server lists an object now.
func (r definer) listed(ctx context.Context, d *database, kind my.Kind, name string) (bool, error) {
	list, column := "tables WHERE table_schema = ", "table_name"
	switch kind {
	case my.KindSequence, my.KindView:
	case my.KindLibrary:
		list, column = "libraries WHERE library_schema = ", "library_name"
	case my.KindEvent:
		list, column = "events WHERE event_schema = ", "event_name"
	default:
		list, column = "routines WHERE routine_type = "+my.Literal(string(kind))+" AND routine_schema = ", "routine_name"
	}
	s, err := my.Connect(ctx, r.cfg, "") // the main session's view of MySQL's lists is older
	if err != nil {
		return false, err
	}
	row, err := s.Row(ctx, "SELECT COUNT(*) FROM information_schema."+list+my.Literal(d.name)+" AND "+column+" = "+my.Literal(name))
	if err = errors.Join(err, s.Close()); err != nil {
		return false, err
	}
	return row[0] != "0", nil
}

func (r definer) defineLibraries(ctx context.Context, d *database) error {
	if r.opts.Filter.Selective() || r.maria || r.main.Version() < 90200 {
		return nil
	}
	return r.keepEach(ctx, d, "libraries", my.KindLibrary, "SELECT library_name FROM information_schema.libraries WHERE library_schema = "+my.Literal(d.name)+" ORDER BY library_name")
}

// keepEach writes the definitions that a query names.
func (r definer) keepEach(ctx context.Context, d *database, what string, kind my.Kind, query string) error {
	var names []string
	err := r.main.Query(ctx, query, func(row []string) error {
		names = append(names, row[0])
		return nil
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", what, err)
	}
	for _, name := range names {
		if _, err := r.keepListed(ctx, d, kind, name); err != nil {
			return err
		}
	}
	return nil
}

func (r definer) defineRoutines(ctx context.Context, d *database) error {
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
		if _, err := r.keepListed(ctx, d, my.Kind(strings.ToLower(f.kind)), f.name); err != nil {
			return err
		}
	}
	return nil
}

// defineViews writes views after those whose names they contain. That may put one after another
// that it does not need, but never before one that it does.
func (r definer) defineViews(ctx context.Context, d *database) error {
	entries := map[string]my.Entry{}
	kept := d.views[:0]
	for _, name := range d.views {
		e, there, err := r.view(ctx, d, name)
		if err != nil {
			return err
		}
		if there {
			entries[name], kept = e, append(kept, name)
		}
	}
	d.views = kept
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

// view reads the definition of a view. It also keeps one that reads missing objects: as the
// server prints it, or as it is in the server's own tables. there is false if it was dropped
// since it was listed.
func (r definer) view(ctx context.Context, d *database, name string) (e my.Entry, there bool, err error) {
	e, there, err = r.show(ctx, d, my.KindView, name)
	if !there {
		return e, false, err
	}
	broken := r.main.Exec(ctx, "SELECT 1 FROM "+my.Ident(name)+" LIMIT 0")
	if my.ErrorCode(broken) == 0 || my.Denied(broken) { // a view that this account may not read may be of use to others
		broken = nil
	}
	if err != nil && (broken == nil || r.main.Broken() != nil) {
		return e, false, err
	}
	if err != nil {
		all, err := r.main.Row(ctx, `SELECT view_definition, definer, security_type, character_set_client, collation_connection
			FROM information_schema.views WHERE table_schema = `+my.Literal(d.name)+` AND table_name = `+my.Literal(name))
		if err != nil {
			return e, false, fmt.Errorf("read view %s: %w", name, err)
		}
		e = my.Entry{
			Kind: my.KindView, Name: name, Create: "CREATE SQL SECURITY " + all[2] + " VIEW " + my.Ident(name) + " AS " + all[0],
			Client: all[3], Collation: all[4],
		}
	}
	if broken != nil {
		e.Broken = true
		r.warn("view %s.%s cannot be read, and its definition is kept as it is: %v", d.name, name, broken)
	}
	return e, true, nil
}

func (r definer) defineTriggers(ctx context.Context, d *database) error {
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
		if err := r.keep(ctx, d, my.KindTrigger, f.name); err != nil {
			return err
		}
		d.toc.Entries[len(d.toc.Entries)-1].Table = f.table
	}
	return nil
}

func (r definer) defineEvents(ctx context.Context, d *database) error {
	if r.opts.Filter.Selective() {
		return nil
	}
	return r.keepEach(ctx, d, "events", my.KindEvent, "SELECT event_name FROM information_schema.events WHERE event_schema = "+my.Literal(d.name)+" ORDER BY event_name")
}

// sequences writes the positions of sequences. Views of rows do not apply to them, so they are
// read after all rows: no value that a row uses is generated again.
func (r *runner) sequences(ctx context.Context) error {
	for _, d := range r.databases {
		var b strings.Builder
		for _, name := range d.seqs {
			row, err := r.main.Row(ctx, "SELECT next_not_cached_value FROM "+my.Qualified(d.name, name))
			if my.Missing(err) { // it is not pinned
				r.warn("sequence %s.%s was dropped while the backup was taken: the backup has its definition, and not where it stood", d.name, name)
				continue
			}
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

// writeChunk writes a chunk that is cheap to make, and replaces that of an earlier run.
func (r *runner) writeChunk(ctx context.Context, info archive.ChunkInfo, fill func(io.Writer) error) error {
	r.claim(info.Path)
	return r.w.Replace(ctx, info, fill)
}
