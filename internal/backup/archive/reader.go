package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A Reader reads one complete backup. It is safe for concurrent use.
type Reader struct {
	storage  Storage
	dir      string // the backup's directory with a trailing slash, or ""
	manifest *Manifest
	sealed   string // the file with the full manifest, if there is one
	keys     *keyring
	byPath   map[string]*Chunk
	bySum    map[string]string // path by SHA-256 of the stored bytes
	longest  int64             // stored bytes of the longest chunk
	sums     string            // SHA-256 that SHA256SUMS must have
	close    func() error
}

// ReadOptions hold the keys for reading.
type ReadOptions struct {
	// Identities are private keys: contents of age identity files or of unencrypted OpenSSH
	// private keys.
	Identities [][]byte

	// Passphrase decrypts a backup that was written with one.
	Passphrase string

	// SpoolDir is where a stream from a pipe is stored while it is read, because its manifest
	// comes last. Default: os.TempDir().
	SpoolDir string
}

// Latest stands for the id of the newest complete backup of a repository.
const Latest = "latest"

// maxManifest limits the size of a manifest, in bytes: some million chunks.
const maxManifest = 1 << 30

// Open opens the backup id of a repository, or the newest one for [Latest] or "".
// "latest:LABEL" is the newest with that label. "" is an error if there are backups of several
// labels or servers, because it is ambiguous. Open reads the manifest and checks it against its
// own digest.
func Open(ctx context.Context, repo *Repository, id string, opts ReadOptions) (*Reader, error) {
	if name, label, _ := strings.Cut(id, ":"); name == Latest || id == "" {
		newest, err := newestOf(ctx, repo, label, id != Latest)
		if err != nil {
			return nil, err
		}
		id = newest
	}
	if err := checkID("id", id); err != nil {
		return nil, fmt.Errorf("open backup: %w", err)
	}
	return openDir(ctx, repo.storage, id+"/", opts)
}

// newestOf returns the id of the newest complete backup with a label, or of all if label is "".
// With one, all backups must be of one source.
func newestOf(ctx context.Context, repo *Repository, label string, one bool) (string, error) {
	if err := repo.exists(); err != nil {
		return "", err
	}
	entries, err := List(ctx, repo, time.Now())
	if err != nil {
		return "", err
	}
	id, sources := "", map[string]string{}
	var unread *Entry // the newest one that cannot be read, if no readable one is newer
	for i, e := range slices.Backward(entries) {
		if e.State == Damaged && id == "" && unread == nil && mayBeOf(e.ID, label) {
			unread = &entries[i]
		}
		if e.State != Complete || label != "" && e.Summary.Label != label {
			continue
		}
		if id == "" {
			id = e.ID
		}
		source := e.Summary.Label + "\x00" + string(e.Summary.Engine) + e.Summary.Server.SystemID
		if sources[source] == "" {
			sources[source] = e.ID
		}
	}
	if unread != nil {
		// A caller that asks for the newest backup must not silently get an older one.
		return "", &Error{
			Op: "choose a backup of", Place: repo.String(), Err: fmt.Errorf("the newest, %s, cannot be read: %s", unread.ID, unread.Reason),
			Hint: "weir backup list shows the others: name the one that you mean by its ID",
		}
	}
	switch {
	case id == "" && label != "":
		return "", &Error{Op: "look for backups of " + label + " in", Place: repo.String(), Err: ErrNoBackup, Hint: "weir backup list shows what there is"}
	case id == "":
		return "", &Error{Op: "look for backups in", Place: repo.String(), Err: ErrNoBackup, Hint: "weir backup list shows what there is"}
	case one && len(sources) > 1:
		return "", &Error{
			Op: "choose a backup of", Place: repo.String(), Err: ErrAmbiguous,
			Hint: "name one by its ID, latest:LABEL for the newest of a label, or latest for the newest of all; the newest of each are " +
				strings.Join(slices.Sorted(maps.Values(sources)), ", "),
		}
	}
	return id, nil
}

// mayBeOf reports whether a backup whose label is unknown may have this one: the id that weir
// generates ends with it.
func mayBeOf(id, label string) bool {
	_, of, made := parseID(id)
	return !made || label == "" || of == label || strings.HasPrefix(of, label+"-")
}

// openDir opens the backup in a directory of a storage, "" for its root.
func openDir(ctx context.Context, s Storage, dir string, opts ReadOptions) (*Reader, error) {
	r := &Reader{storage: s, dir: dir, close: func() error { return nil }}
	if err := r.load(ctx, opts); err != nil {
		return nil, fmt.Errorf("open backup %s: %w", placeOf(s, dir), err)
	}
	return r, nil
}

// placeOf returns a directory of a storage in the form that an operator would write.
func placeOf(s Storage, dir string) string {
	if dir = strings.TrimSuffix(dir, "/"); dir == "" {
		return s.String()
	}
	return strings.TrimSuffix(s.String(), "/") + "/" + dir
}

// load reads the manifest, and the full one if names are hidden and a key was given.
func (r *Reader) load(ctx context.Context, opts ReadOptions) error {
	data, err := readAll(ctx, r.storage, r.dir+manifestName, maxManifest)
	if errors.Is(err, ErrNotExist) {
		return r.absent(ctx)
	}
	if err != nil {
		return err
	}
	m, err := ParseManifest(data)
	if err != nil {
		return err
	}
	if base := path.Base(r.dir); r.dir != "" && base != m.ID {
		return fmt.Errorf("the manifest is of backup %s: %w", m.ID, ErrSwapped)
	}
	if r.keys, err = newKeyring(ctx, r.storage, r.dir, m.Encryption, opts); err != nil {
		return err
	}
	r.use(m)
	r.sums = sumsSum(m, sha256Hex(data))
	if m.Sealed != "" && r.keys != nil {
		return r.unseal(ctx)
	}
	return nil
}

// absent returns why there is no manifest.
func (r *Reader) absent(ctx context.Context) error {
	for _, err := range r.storage.List(ctx, r.dir, false) {
		if err != nil {
			return err
		}
		return ErrIncomplete
	}
	return &Error{Op: "read", Place: placeOf(r.storage, r.dir), Err: ErrNotExist, Hint: "weir backup list shows what there is"}
}

func (r *Reader) use(m *Manifest) {
	r.manifest, r.byPath, r.bySum = m, map[string]*Chunk{}, map[string]string{}
	for i := range m.Chunks {
		c := &m.Chunks[i]
		r.byPath[c.Path] = c
		r.bySum[c.StoredSHA256] = c.Path
		r.longest = max(r.longest, c.StoredBytes)
	}
}

// unseal replaces a manifest that hides names by the full one.
func (r *Reader) unseal(ctx context.Context) error {
	public := r.manifest
	in, err := r.Chunk(ctx, public.Sealed)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(in, maxManifest))
	if err := errors.Join(err, in.Close()); err != nil {
		return err
	}
	m, err := ParseManifest(data)
	if err != nil {
		return err
	}
	if m.ID != public.ID {
		return fmt.Errorf("the full manifest is of backup %s: %w", m.ID, ErrSwapped)
	}
	r.sealed = r.byPath[public.Sealed].File
	r.use(m)
	return nil
}

// OpenLocation opens the backup at location: a repository (then id selects the backup), the
// directory of one backup, or a file with a tar stream. All but the last may be in S3. "-" is a
// stream from standard input.
func OpenLocation(ctx context.Context, location, id string, opts ReadOptions) (*Reader, error) {
	if location == "-" {
		return OpenStream(ctx, os.Stdin, opts)
	}
	if info, err := os.Stat(location); err == nil && info.Mode().IsRegular() {
		return openFile(ctx, location, opts)
	}
	s, err := OpenStorage(ctx, location)
	if err != nil {
		return nil, err
	}
	if id == "" {
		switch _, err := s.Stat(ctx, manifestName); {
		case err == nil:
			return openDir(ctx, s, "", opts)
		case !errors.Is(err, ErrNotExist):
			return nil, err
		}
		if alone, err := unfinished(ctx, s); err != nil || alone {
			return nil, errors.Join(err, fmt.Errorf("open backup %s: %w", location, ErrIncomplete))
		}
	}
	return Open(ctx, NewRepository(s), id, opts)
}

// unfinished reports whether the root of a storage is a backup without a manifest.
func unfinished(ctx context.Context, s Storage) (bool, error) {
	for o, err := range s.List(ctx, "", false) {
		if err != nil {
			return false, err
		}
		if !strings.HasSuffix(o.Name, "/") && reserved(o.Name) {
			return true, nil
		}
	}
	return false, nil
}

func openFile(ctx context.Context, location string, opts ReadOptions) (*Reader, error) {
	f, err := os.Open(filepath.Clean(location))
	if err != nil {
		return nil, localError("open", location, err)
	}
	r, err := OpenStream(ctx, f, opts)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	below := r.close
	r.close = func() error { return errors.Join(below(), f.Close()) }
	return r, nil
}

// OpenStream opens a tar stream. If in is a regular file, chunks are read from it, so it must
// stay open while the reader is used; otherwise all of it is first copied to a temporary file,
// which Close removes. The caller closes in.
func OpenStream(ctx context.Context, in io.Reader, opts ReadOptions) (*Reader, error) {
	var size int64
	f, ok := in.(*os.File)
	place, end := "the stream", func() error { return nil }
	if ok {
		info, err := f.Stat()
		if err != nil {
			return nil, fmt.Errorf("open stream: %w", err)
		}
		size, ok = info.Size(), info.Mode().IsRegular()
	}
	if !ok {
		var err error
		if f, size, err = spool(ctx, in, opts.SpoolDir); err != nil {
			return nil, fmt.Errorf("open stream: %w", err)
		}
		end = f.Close
	} else {
		place = f.Name()
	}
	t, err := newTarReader(f, size, place)
	if err != nil {
		return nil, errors.Join(err, end())
	}
	dir, files := "", 0
	for o := range t.List(ctx, "", true) {
		files++
		if found, ok := strings.CutSuffix(o.Name, manifestName); ok && strings.Count(o.Name, "/") <= 1 {
			dir = found
		}
	}
	if files == 0 {
		return nil, errors.Join(fmt.Errorf("open %s: it holds no backup", place), end())
	}
	r, err := openDir(ctx, t, dir, opts)
	if err != nil {
		return nil, errors.Join(err, end())
	}
	r.close = end
	return r, nil
}

// spool copies a stream to an unlinked file, whose space is freed when it is closed or the
// process ends.
func spool(ctx context.Context, in io.Reader, dir string) (*os.File, int64, error) {
	f, err := os.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return nil, 0, localError("create", filepath.Join(dir, tempPrefix+"*"), err)
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, 0, errors.Join(localError("unlink", f.Name(), err), f.Close())
	}
	n, err := io.Copy(f, contextReader{ctx, in})
	if err != nil {
		return nil, 0, errors.Join(localError("copy stream to", f.Name(), err), f.Close())
	}
	return f, n, nil
}

// contextReader fails between reads when its context has ended.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}

// Manifest returns the manifest, which the caller must not change. For a backup that hides
// names it is the full one if a key was given, otherwise the public one.
func (r *Reader) Manifest() *Manifest { return r.manifest }

// Close releases the reader's resources.
func (r *Reader) Close() error { return r.close() }
