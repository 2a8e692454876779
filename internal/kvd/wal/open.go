package wal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Torn is the end of a write that a crash cut short, and that was not acknowledged.
type Torn struct {
	File   string `json:"file"`   // its name
	Offset int64  `json:"offset"` // where it was cut off, in bytes
	What   string `json:"what"`   // why it is invalid
}

// Recovered is the result of [Open].
type Recovered struct {
	Created  bool         // the directory was empty: this replica has no state
	Clean    bool         // the log was closed, without a crash
	Torn     *Torn        // the end that was cut off, nil if none was
	Snapshot SnapshotInfo // the newest usable snapshot; Index 0: none
	Unusable []error      // why newer snapshots are unusable; the log still has their entries
	First    uint64       // index of the first entry that Records yields, Last+1 if none
	Last     uint64       // index of the last entry, or of the snapshot
	LastTerm uint64       // its term

	disk     Disk
	segments []segment
	cuts     []cut
	void     bool // the snapshot replaces all entries
}

// cut says that a record, counted among all entries and resets, voids the entries from index on
// that were written before it.
type cut struct{ ordinal, index uint64 }

// Open opens the log in directory dir, which is created if it does not exist, for the replica
// that who describes; who.Log is ignored. Recovered yields the contents of the log.
//
// Open returns a *LockedError if another process uses the directory, an *IdentityError if it
// belongs to another replica, and a *CorruptError, without changing anything, if flushed data
// is damaged.
func Open(dir string, who Identity, opts Options) (*Log, *Recovered, error) {
	opts, err := opts.withDefaults(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("open log in %s: %w", dir, err)
	}
	lock, err := opts.Disk.Lock(false)
	if err != nil {
		return nil, nil, fmt.Errorf("open log in %s: %w", dir, err)
	}
	l := &Log{disk: opts.Disk, opts: opts, id: who, lock: lock}
	r, err := l.recover()
	if err != nil {
		if l.file != nil {
			err = errors.Join(err, l.file.Close())
		}
		return nil, nil, fmt.Errorf("open log in %s: %w", dir, errors.Join(err, lock.Close()))
	}
	return l, r, nil
}

// makeDir creates a directory and makes its name durable.
func makeDir(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(filepath.Clean(dir))
	if err := makeDir(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return dirDisk{parent}.SyncDir()
}

// listing is the files of a directory, by kind.
type listing struct {
	identity bool
	segments []uint64
	spares   []string
	temps    []string
	parts    []string
	others   []string // snapshots, and files of others
	next     uint64   // number of the next spare
}

func list(disk Disk) (listing, error) {
	var c listing
	names, err := disk.List()
	if err != nil {
		return c, fmt.Errorf("list files: %w", err)
	}
	slices.Sort(names)
	for _, name := range names {
		if n, ok := parseSpareName(strings.TrimSuffix(name, tempSuffix)); ok {
			c.next = max(c.next, n+1)
		}
		number, segment := parseSegmentName(name)
		_, spare := parseSpareName(name)
		_, part := parsePartName(name)
		switch {
		case name == identityName:
			c.identity = true
		case segment:
			c.segments = append(c.segments, number)
		case spare:
			c.spares = append(c.spares, name)
		case isTemp(name):
			c.temps = append(c.temps, name)
		case part:
			c.parts = append(c.parts, name)
		default:
			c.others = append(c.others, name)
		}
	}
	return c, nil
}

// isTemp reports whether a file is an unfinished file of the log. There may be files of others
// in the directory.
func isTemp(name string) bool {
	of, ok := strings.CutSuffix(name, tempSuffix)
	_, spare := parseSpareName(of)
	return ok && (of == identityName || of == peersName || of == ackedName || of == groupName || spare || isSnapshot(of))
}

// recover reads the directory and prepares the log for writing.
func (l *Log) recover() (*Recovered, error) {
	files, err := list(l.disk)
	if err != nil {
		return nil, err
	}
	l.spares = &spares{disk: l.disk, size: l.opts.SegmentBytes, next: files.next}
	r := &Recovered{disk: l.disk}
	if !files.identity {
		if files, err = l.create(files); err != nil {
			return nil, err
		}
		r.Created = true
	}
	id, err := readIdentity(l.disk)
	if err != nil {
		return nil, err
	}
	if err := id.match(l.id); err != nil {
		return nil, err
	}
	l.id = id
	if l.peers, err = readPeers(l.disk); err != nil {
		return nil, err
	}
	if err := l.readSegments(r, files.segments); err != nil {
		return nil, err
	}
	if l.snapshots, r.Unusable, err = openSnapshots(l.disk, l.id.Cluster); err != nil {
		return nil, err
	}
	if err := l.choose(r); err != nil {
		return nil, err
	}
	if err := l.tidy(files, r.Snapshot.Index); err != nil {
		return nil, err
	}
	return r, l.mark(r)
}

// create starts a log in a directory without identity. Remains of an earlier attempt that
// crashed are removed; if the directory was ever used, it returns an error.
func (l *Log) create(files listing) (listing, error) {
	missing := corrupt(identityName, 0, "it is missing beside other files of a log")
	if len(files.segments) > 1 || slices.ContainsFunc(files.others, isSnapshot) {
		return files, missing
	}
	for _, number := range files.segments {
		s, f, err := readSegment(l.disk, segmentName(number))
		if err != nil {
			return files, err
		}
		var d damage
		for range s.scan(f, 0, &d) {
			continue
		}
		if err := f.Close(); err != nil {
			return files, fmt.Errorf("close %s: %w", s.file, err)
		}
		// A log that was used begins with the round that mark writes.
		if number != 1 || s.rounds != 1 {
			return files, missing
		}
		if err := l.disk.Remove(s.file); err != nil {
			return files, fmt.Errorf("remove %s: %w", s.file, err)
		}
	}
	if _, err := io.ReadFull(l.opts.Rand, l.id.Log[:]); err != nil {
		return files, fmt.Errorf("draw a log id: %w", err)
	}
	_, f, err := l.begin(header{number: 1}, nil)
	if err != nil {
		return files, fmt.Errorf("begin the first segment: %w", err)
	}
	if err := f.Close(); err != nil {
		return files, fmt.Errorf("close the first segment: %w", err)
	}
	if err := writeIdentity(l.disk, l.id); err != nil {
		return files, err
	}
	return list(l.disk)
}

// readSegments scans all segments and finds the end of the log.
func (l *Log) readSegments(r *Recovered, numbers []uint64) error {
	if len(numbers) == 0 {
		return corrupt(identityName, 0, "the log has no segment")
	}
	var reader logReader
	for i, number := range numbers {
		file := segmentName(number)
		if i > 0 && number != numbers[i-1]+1 {
			return corrupt(file, 0, "the segments between %s and this one are missing", segmentName(numbers[i-1]))
		}
		s, f, err := readSegment(l.disk, file)
		if err != nil {
			return err
		}
		err = reader.read(s, f, number, l.id.Log, i == len(numbers)-1)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		l.older = append(l.older, s)
	}
	l.now = l.older[len(l.older)-1]
	l.older = l.older[:len(l.older)-1]
	l.track = reader.track
	for _, s := range l.older {
		r.segments = append(r.segments, *s)
	}
	r.segments = append(r.segments, *l.now)
	r.cuts, r.Clean, r.Torn = reader.cuts, reader.clean, reader.torn
	return nil
}

// choose picks the newest valid snapshot, and checks that the log continues from there.
func (l *Log) choose(r *Recovered) error {
	for _, info := range slices.Backward(l.snapshots.List()) {
		if err := l.snapshots.Verify(info); err != nil {
			var bad *CorruptError
			if !errors.As(err, &bad) {
				return err
			}
			l.snapshots.markUnusable(info)
			r.Unusable = append(r.Unusable, err)
			continue
		}
		r.Snapshot = info
		break
	}
	base, t := r.Snapshot, &l.track
	if !t.reaches(base.Index) {
		what := fmt.Sprintf("the log begins with entry %d, the newest usable snapshot ends at %d", t.first, base.Index)
		for _, err := range r.Unusable {
			var bad *CorruptError
			if errors.As(err, &bad) {
				what += fmt.Sprintf("; %s is not usable: %s", bad.File, bad.What)
			}
		}
		return corrupt(r.segments[0].file, 0, "%s", what)
	}
	// A snapshot from another replica may be ahead of the log, or contradict it: the crash came
	// before the log was reset.
	if term, known := t.term(base.Index); base.Index > t.last || known && term != base.Term {
		r.void = true
		l.track = newTrack(base.Index, base.Term)
	}
	r.First = base.Index + 1
	r.Last, r.LastTerm = l.Last()
	return nil
}

// tidy removes what a crash has left, and partly received snapshots that are not newer than
// index.
func (l *Log) tidy(files listing, index uint64) error {
	useless := slices.DeleteFunc(files.parts, func(name string) bool {
		part, _ := parsePartName(name)
		return part > index
	})
	for _, name := range append(files.temps, useless...) {
		if err := l.disk.Remove(name); err != nil {
			return fmt.Errorf("remove %s: %w", name, err)
		}
	}
	for _, name := range files.spares {
		keep, err := l.fits(name)
		if err != nil {
			return err
		}
		if keep && l.spares.count() < l.opts.Spares {
			l.spares.put(name)
			continue
		}
		if err := l.disk.Remove(name); err != nil {
			return fmt.Errorf("remove %s: %w", name, err)
		}
	}
	// Names that the previous process has seen may not be durable yet.
	if err := l.disk.SyncDir(); err != nil {
		return fmt.Errorf("flush directory: %w", err)
	}
	return nil
}

// fits reports whether a spare has the current size of segments.
func (l *Log) fits(name string) (bool, error) {
	n, err := size(l.disk, name)
	return n >= l.opts.SegmentBytes && n < 2*l.opts.SegmentBytes, err
}

// size returns the length of a file that is not open.
func size(disk Disk, name string) (int64, error) {
	f, err := disk.Open(name, false)
	if err != nil {
		return 0, fmt.Errorf("open %s: %w", name, err)
	}
	n, err := f.Size()
	if err := errors.Join(err, f.Close()); err != nil {
		return 0, fmt.Errorf("find size of %s: %w", name, err)
	}
	return n, nil
}

// mark writes a round that records the opening of the log. It overwrites the head of a torn
// round, so that no mixture of sectors can bring it back later.
func (l *Log) mark(r *Recovered) error {
	var err error
	if l.file, err = l.disk.Open(l.now.file, true); err != nil {
		return fmt.Errorf("open %s: %w", l.now.file, err)
	}
	if err := l.settle(); err != nil {
		return fmt.Errorf("write the last round of %s again: %w", l.now.file, err)
	}
	nonce := make([]byte, 8)
	if _, err := io.ReadFull(l.opts.Rand, nonce); err != nil {
		return fmt.Errorf("draw a nonce: %w", err)
	}
	l.put(&Record{Kind: kindOpen, Data: nonce})
	if r.void {
		if err := l.Append(Record{Kind: Reset, Index: r.Snapshot.Index, Term: r.Snapshot.Term}); err != nil {
			return err
		}
	}
	return l.Sync()
}

// settle makes the last round durable. It was read, but perhaps only from memory: the previous
// process may have died before its flush, or because its flush failed, and then the kernel
// believes that the page is clean. Writing the round again makes the kernel write it. No other
// round can be in doubt, and no round may follow one that is.
func (l *Log) settle() error {
	s := l.now
	if s.rounds == 1 {
		return nil // flushed before the segment got its name
	}
	b := make([]byte, s.end-s.lastAt)
	if err := readFull(l.file, b, s.lastAt); err != nil {
		return err
	}
	if _, err := l.file.WriteAt(b, s.lastAt); err != nil {
		return withSpaceHint(err)
	}
	return l.file.Sync()
}
