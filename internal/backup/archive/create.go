package archive

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// maxID is the maximum length of an id, which is the name of a directory.
const maxID = 128

// idTime is the layout of the time at the beginning of a generated id.
const idTime = "20060102T150405Z"

// newID returns a generated id: "20261121T163528Z-shop".
func newID(now time.Time, label string) string {
	return now.UTC().Format(idTime) + "-" + label
}

// parseID parses an id that newID generated; a number may follow the label.
func parseID(id string) (at time.Time, label string, ok bool) {
	when, label, made := strings.Cut(id, "-")
	at, err := time.Parse(idTime, when)
	return at, label, made && err == nil
}

// checkID returns an error if an id or label cannot be part of a file name.
func checkID(what, id string) error {
	bad := strings.ContainsFunc(id, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	})
	if bad || id == "" || len(id) > maxID || id[0] == '.' {
		return fmt.Errorf("%s %q: letters, digits, '.', '_' and '-' only, at most %d, and no dot first", what, id, maxID)
	}
	return nil
}

// Label converts a name, such as a database's, into a label: characters that an id cannot
// contain become '-'.
func Label(name string) string {
	clean := strings.Map(func(r rune) rune {
		if checkID("label", "a"+string(r)) != nil {
			return '-'
		}
		return r
	}, name)
	clean = strings.TrimLeft(clean[:min(len(clean), 64)], ".")
	if clean == "" {
		return "backup"
	}
	return clean
}

// Create begins a backup in a repository, or continues one (Options.Resume). It holds the
// backup's lock until Finish or Abort: a second writer with the same id gets [ErrLocked].
func Create(ctx context.Context, repo *Repository, opts Options) (*Writer, error) {
	label := opts.Label
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("create backup: %w", err)
	}
	if opts.Resume {
		w, err := resume(ctx, repo.storage, opts, label)
		if err != nil {
			return nil, fmt.Errorf("resume backup %s: %w", opts.ID, err)
		}
		return w, nil
	}
	given := opts.ID != ""
	if !given {
		opts.ID = newID(opts.Now(), opts.Label)
	}
	first := opts.ID
	for n := 2; ; n++ {
		w, err := begin(ctx, repo.storage, opts)
		// Generated ids have a resolution of a second: a second backup in the same second gets
		// a number.
		if (errors.Is(err, ErrExist) || errors.Is(err, ErrLocked)) && !given && n < 1000 {
			opts.ID = fmt.Sprintf("%s-%d", first, n)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("create backup %s: %w", opts.ID, err)
		}
		return w, nil
	}
}

// begin starts a backup that must not exist.
func begin(ctx context.Context, s Storage, opts Options) (*Writer, error) {
	w, err := newWriter(s, opts)
	if err != nil {
		return nil, err
	}
	w.begun = opts.Now()
	r := newRun(w.begun, opts.Label, w.encryption(), opts.Encryption.HideNames)
	w.lock, err = takeLock(ctx, s, w.dir, 1, r)
	if errors.Is(err, ErrExist) {
		return nil, taken(ctx, s, w.dir, opts.Now())
	}
	if err != nil {
		return nil, err
	}
	// The lock of a finished backup is gone: only its manifest shows that it exists.
	switch _, err := s.Stat(ctx, w.dir+manifestName); {
	case err == nil:
		w.lock.halt()
		return nil, errors.Join(
			&Error{Op: "create", Place: w.dir, Err: ErrExist, Hint: "the backup is complete; choose another id"},
			s.Delete(ctx, runName(w.dir, 1)),
		)
	case !errors.Is(err, ErrNotExist):
		w.lock.halt() // keep it: another run may hold the next lock by now
		return nil, err
	}
	if err := w.settle(ctx); err != nil {
		return nil, errors.Join(err, errors.Join(w.leave(context.WithoutCancel(ctx), false)...))
	}
	return w, nil
}

// taken returns why the first run of a backup cannot begin.
func taken(ctx context.Context, s Storage, dir string, now time.Time) error {
	n, r, err := lastRun(ctx, s, dir)
	switch {
	case err != nil:
		return err
	case n > 0 && r.alive(now):
		return &Error{Op: "lock", Place: dir, Err: ErrLocked, Hint: "wait for it, or choose another id"}
	}
	return &Error{Op: "create", Place: dir, Err: ErrExist, Hint: "an unfinished backup has this id; resume it, or choose another id"}
}

// settle prepares the key and the journal of a writer that holds its lock.
func (w *Writer) settle(ctx context.Context) error {
	if w.opts.Encryption.Passphrase != "" {
		if err := w.seal.addKey(ctx, w.storage, w.dir, w.opts.Encryption, w.opts.Resume); err != nil {
			return err
		}
	}
	if w.opts.Encryption.HideNames {
		return nil // a journal would reveal the names
	}
	// The journal does not end with ctx: chunks that complete while a cancelled backup ends are
	// still recorded.
	var err error
	w.journal, err = openJournal(context.WithoutCancel(ctx), w.storage, w.dir, w.lock.number)
	return err
}

// resume continues a backup that has runs but no manifest. A label, if given, must be that of
// the backup: with another source, all chunks of the first one would be removed, and those of
// the second would appear under the first one's label.
func resume(ctx context.Context, s Storage, opts Options, label string) (*Writer, error) {
	w, err := newWriter(s, opts)
	if err != nil {
		return nil, err
	}
	if _, err := s.Stat(ctx, w.dir+manifestName); err == nil {
		return nil, fmt.Errorf("it is complete: %w", ErrExist)
	} else if !errors.Is(err, ErrNotExist) {
		return nil, err
	}
	n, last, err := lastRun(ctx, s, w.dir)
	switch {
	case err != nil:
		return nil, err
	case n == 0:
		return nil, &Error{Op: "find", Place: w.dir, Err: ErrNotExist, Hint: "weir backup list shows what there is"}
	case last.alive(opts.Now()):
		return nil, &Error{Op: "lock", Place: w.dir, Err: ErrLocked, Hint: "it still runs, or was killed elsewhere less than five minutes ago"}
	case label != "" && last.Label != "" && label != last.Label:
		return nil, fmt.Errorf("it has the label %q, not %q: it is of another source, or --label is missing", last.Label, label)
	case last.HideNames || opts.Encryption.HideNames:
		return nil, errors.New("a backup with hidden names has no journal; remove it and begin again")
	}
	if !last.Encryption.same(w.encryption()) {
		return nil, errors.New("its first part is encrypted to other keys or to none: give the same recipients and passphrase")
	}
	w.begun, w.opts.Label = last.Begun, last.Label
	r := newRun(opts.Now(), last.Label, last.Encryption, false)
	r.Begun = last.Begun
	if w.lock, err = takeLock(ctx, s, w.dir, n+1, r); err != nil {
		if errors.Is(err, ErrExist) {
			err = &Error{Op: "lock", Place: w.dir, Err: ErrLocked, Hint: "another process resumes it"}
		}
		return nil, err
	}
	held, done := w.lock.while(ctx)
	defer done()
	err = w.settle(held)
	if err == nil {
		err = w.inherit(held)
	}
	if err != nil {
		return nil, errors.Join(w.lock.why(err), errors.Join(w.leave(context.WithoutCancel(ctx), true)...))
	}
	return w, nil
}

// inherit takes over the chunks that earlier runs completed, and removes incomplete ones. A
// chunk counts only if the journal lists it and the storage has it with the right length;
// Verify checks its content.
func (w *Writer) inherit(ctx context.Context) error {
	done, err := readJournals(ctx, w.storage, w.dir)
	if err != nil {
		return err
	}
	sizes := map[string]int64{}
	for o, err := range w.storage.List(ctx, w.dir, true) {
		if err != nil {
			return err
		}
		sizes[strings.TrimPrefix(o.Name, w.dir)] = o.Size
	}
	for path, c := range done {
		size, there := sizes[c.File]
		if !there || size != c.StoredBytes {
			delete(done, path)
			continue
		}
		delete(sizes, c.File)
	}
	var stray []string
	for name := range sizes {
		if !reserved(name) || name == manifestName || name == sumsName {
			stray = append(stray, w.dir+name)
		}
	}
	slices.Sort(stray)
	if err := w.storage.Delete(ctx, stray...); err != nil {
		return err
	}
	if _, err := w.storage.Clean(ctx, w.dir, time.Now()); err != nil {
		return err
	}
	w.done, w.resumed = done, len(done)
	for _, c := range done {
		w.resumedBytes += c.PlainBytes
	}
	return nil
}
