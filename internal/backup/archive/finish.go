package archive

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// sealedPath is the path of the chunk with the full manifest of a backup that hides names.
const sealedPath = "full/manifest.json"

// Finish writes the manifest, which completes the backup, and releases the lock. All chunks
// must be closed. It fills in format, id, label, times, encryption, chunks and all sums; every
// chunk of kind data that names a table must find the table among content's databases. If
// Finish fails, the backup has no manifest, unless the storage stored it and then became
// unreachable; Abort must follow.
func (w *Writer) Finish(ctx context.Context, content Manifest) (*Manifest, error) {
	m, err := w.finish(ctx, content)
	if err != nil {
		return nil, fmt.Errorf("finish backup %s: %w", w.opts.ID, w.lock.why(err))
	}
	return m, nil
}

func (w *Writer) finish(ctx context.Context, content Manifest) (*Manifest, error) {
	if err := w.awaitAll(); err != nil {
		return nil, err
	}
	full, err := w.compose(content)
	if err != nil {
		return nil, err
	}
	if w.lock != nil {
		if err := w.lock.check(ctx); err != nil {
			return nil, err
		}
		var done func()
		ctx, done = w.lock.while(ctx)
		defer done()
	}
	public := full
	if w.opts.Encryption.HideNames {
		if public, err = w.hide(ctx, full); err != nil {
			return nil, err
		}
	}
	sum, err := public.sign()
	if err != nil {
		return nil, err
	}
	if err := w.put(ctx, sumsName, func(out io.Writer) error { return writeSums(out, public, sum) }); err != nil {
		return nil, err
	}
	if err := w.end(); err != nil {
		return nil, err
	}
	if err := w.put(ctx, manifestName, public.writeTo); err != nil {
		w.reopen()
		return nil, err
	}
	// From here on the backup is complete. Leftovers are no reason to report a failure:
	// RemoveOrphans removes them.
	var closing error
	if w.journal != nil {
		closing = w.journal.close()
	}
	if w.lock != nil {
		w.lock.halt()
		closing = errors.Join(closing, removeRuns(context.WithoutCancel(ctx), w.storage, w.dir))
	}
	if t, ok := w.storage.(*tarWriter); ok {
		if err := t.Close(); err != nil { // it may be part of the end of a stream
			return nil, err
		}
	}
	if closing != nil {
		full.Warnings = append(full.Warnings, "tidy up after the backup: "+closing.Error())
	}
	return full, nil
}

// put stores a file of the backup, which may be long, atomically. In a stream it has to be one
// entry, whose length comes first.
func (w *Writer) put(ctx context.Context, name string, fill func(io.Writer) error) error {
	if _, ok := w.storage.(*tarWriter); ok {
		var data bytes.Buffer
		if err := fill(&data); err != nil {
			return err
		}
		return w.storage.Put(ctx, w.dir+name, data.Bytes())
	}
	object, err := w.storage.Create(ctx, w.dir+name)
	if err != nil {
		return err
	}
	if err := fill(object); err != nil {
		return errors.Join(err, object.Abort())
	}
	if _, err := object.Commit(); err != nil {
		return errors.Join(err, object.Abort())
	}
	return nil
}

// end makes the writer refuse further chunks.
func (w *Writer) end() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return errEnded
	}
	if len(w.open) > 0 {
		return fmt.Errorf("%d chunks are still open", len(w.open))
	}
	w.ended = true
	return nil
}

func (w *Writer) reopen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = false
}

// compose returns the full manifest without its digest.
func (w *Writer) compose(content Manifest) (*Manifest, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.ended:
		return nil, errEnded
	case len(w.open) > 0:
		return nil, fmt.Errorf("%d chunks are still open", len(w.open))
	}
	m := content
	m.Format, m.Version, m.ID, m.Label, m.Weir = Format, FormatVersion, w.opts.ID, w.opts.Label, w.opts.Weir
	m.Started, m.Finished = w.begun.UTC(), w.opts.Now().UTC()
	m.Encryption, m.Sealed = w.encryption(), ""
	m.Chunks = sortedChunks(w.done)
	m.Databases = slices.Clone(content.Databases)
	for i := range m.Databases {
		m.Databases[i].Tables = slices.Clone(m.Databases[i].Tables)
	}
	return &m, m.sum()
}

// tableKey identifies a table in a manifest.
type tableKey struct{ database, schema, table string }

// sum fills in all sums.
func (m *Manifest) sum() error {
	tables := map[tableKey]*Table{}
	for i := range m.Databases {
		d := &m.Databases[i]
		for j := range d.Tables {
			t := &d.Tables[j]
			t.Rows, t.PlainBytes, t.Parts = 0, 0, 0
			key := tableKey{d.Name, t.Schema, t.Name}
			if tables[key] != nil {
				return fmt.Errorf("table %q of schema %q in database %q is listed twice", t.Name, t.Schema, d.Name)
			}
			tables[key] = t
		}
	}
	m.Totals = Totals{Chunks: len(m.Chunks), Tables: len(tables)}
	for _, c := range m.Chunks {
		m.Totals.Rows += c.Rows
		m.Totals.PlainBytes += c.PlainBytes
		m.Totals.StoredBytes += c.StoredBytes
		if c.Kind != KindData || c.Table == "" {
			continue
		}
		t := tables[tableKey{c.Database, c.Schema, c.Table}]
		if t == nil {
			return fmt.Errorf("chunk %s: table %q of schema %q in database %q is not among the databases", c.Path, c.Table, c.Schema, c.Database)
		}
		t.Rows += c.Rows
		t.PlainBytes += c.PlainBytes
		t.Parts++
	}
	return nil
}

// hide stores the full manifest as a chunk, encrypted like all others, and returns the public
// part: when, by what, how large; no names, no counts.
func (w *Writer) hide(ctx context.Context, full *Manifest) (*Manifest, error) {
	if err := w.writeSealed(ctx, full); err != nil {
		return nil, err
	}
	public := &Manifest{Summary: full.Summary}
	public.Position = Position{}
	public.Totals.Tables, public.Totals.Rows = 0, 0
	w.mu.Lock()
	chunks := sortedChunks(w.done)
	w.mu.Unlock()
	for _, c := range chunks {
		opaque := strings.TrimSuffix(strings.TrimSuffix(c.File, ageSuffix), c.Codec.Suffix())
		if c.Path == sealedPath {
			public.Sealed = opaque
		}
		public.Chunks = append(public.Chunks, Chunk{
			ChunkInfo: ChunkInfo{Path: opaque}, File: c.File, Codec: c.Codec, Segments: c.Segments,
			PlainBytes: c.PlainBytes, StoredBytes: c.StoredBytes, StoredSHA256: c.StoredSHA256,
		})
	}
	public.Totals.Chunks = len(public.Chunks)
	slices.SortFunc(public.Chunks, func(a, b Chunk) int { return strings.Compare(a.Path, b.Path) })
	return public, nil
}

func (w *Writer) writeSealed(ctx context.Context, full *Manifest) error {
	if _, err := full.sign(); err != nil {
		return err
	}
	w.mu.Lock()
	delete(w.done, sealedPath) // of a Finish that failed after it
	w.mu.Unlock()
	c, err := w.Chunk(ctx, ChunkInfo{Path: sealedPath, Kind: KindOther})
	if err != nil {
		return err
	}
	if err := full.writeTo(c); err != nil {
		return errors.Join(err, c.Abort())
	}
	return c.Close()
}

// writeSums writes the list of all files in the format of sha256sum. manifest is the SHA-256 of
// the manifest.
func writeSums(w io.Writer, m *Manifest, manifest string) error {
	out := bufio.NewWriterSize(w, encodeBytes)
	for i := range m.Chunks {
		if c := &m.Chunks[i]; c.Segments <= 1 { // segments of a stream have no hash of their own
			fmt.Fprintf(out, "%s  %s\n", c.StoredSHA256, c.File)
		}
	}
	if m.Encryption != nil && m.Encryption.KeySHA256 != "" {
		fmt.Fprintf(out, "%s  %s\n", m.Encryption.KeySHA256, m.Encryption.KeyFile)
	}
	fmt.Fprintf(out, "%s  %s\n", manifest, manifestName)
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write %s: %w", sumsName, err)
	}
	return nil
}

// sumsSum returns the SHA-256, in hexadecimal, of what writeSums writes.
func sumsSum(m *Manifest, manifest string) string {
	h := sha256.New()
	_ = writeSums(h, m, manifest) // a hash never fails
	return hex.EncodeToString(h.Sum(nil))
}

// removeRuns deletes what only an unfinished backup needs: journals first, then the locks in
// their order, so that the newest lock remains to the end.
func removeRuns(ctx context.Context, s Storage, dir string) error {
	var journals, runs []string
	for o, err := range s.List(ctx, dir, false) {
		if err != nil {
			return err
		}
		switch name := strings.TrimPrefix(o.Name, dir); {
		case strings.HasPrefix(name, logPrefix):
			journals = append(journals, o.Name)
		case strings.HasPrefix(name, runPrefix):
			runs = append(runs, o.Name)
		}
	}
	if err := s.Delete(ctx, journals...); err != nil {
		return err
	}
	slices.Sort(runs)
	for _, name := range runs {
		if err := s.Delete(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// removeBackup deletes a backup, manifest first: if it is interrupted, it leaves an unfinished
// backup and not one that looks whole. Locks go last.
func removeBackup(ctx context.Context, s Storage, dir string) error {
	if err := s.Delete(ctx, dir+manifestName, dir+sumsName); err != nil {
		return err
	}
	names := map[string]bool{}
	for o, err := range s.List(ctx, dir, true) {
		if err != nil {
			return err
		}
		if !strings.HasPrefix(o.Name, dir+runPrefix) && o.Name != dir+removedName {
			names[o.Name] = true
		}
	}
	if err := s.Delete(ctx, slices.Sorted(maps.Keys(names))...); err != nil {
		return err
	}
	// Nothing of this backup is needed: unfinished uploads are removed whatever their age.
	if _, err := s.Clean(ctx, dir, farFuture); err != nil {
		return err
	}
	return removeRuns(ctx, s, dir)
}
