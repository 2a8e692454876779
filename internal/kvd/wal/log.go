package wal

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"syscall"
)

// Options configure a log.
type Options struct {
	// SegmentBytes is the size of a segment file, except for the first one, which grows to it.
	// Default: 64 MiB.
	SegmentBytes int64
	// Spares is the number of segments kept for reuse when they are no longer needed; others
	// are removed. Negative: none. Default: 2.
	Spares int
	// NoSync omits all flushes. A crash of the process then loses nothing, but a crash of the
	// machine may lose or corrupt anything. Default: false.
	NoSync bool
	// Disk has the files. Default: the directory that is passed to Open.
	Disk Disk
	// Rand is the source of ids and nonces. Default: crypto/rand.
	Rand io.Reader
}

const (
	defaultSegmentBytes = 64 << 20
	defaultSpares       = 2
	minSegmentBytes     = 1 << 10

	// keepBuffer is the capacity of the largest buffer that is reused for the next round.
	keepBuffer = 4 << 20
)

func (o Options) withDefaults(dir string) (Options, error) {
	if o.SegmentBytes == 0 {
		o.SegmentBytes = defaultSegmentBytes
	}
	if o.SegmentBytes < minSegmentBytes {
		return o, fmt.Errorf("a segment of %d bytes is too small, the least is %d", o.SegmentBytes, minSegmentBytes)
	}
	if o.Spares == 0 {
		o.Spares = defaultSpares
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.Disk == nil {
		if err := makeDir(dir); err != nil {
			return o, err
		}
		o.Disk = dirDisk{dir}
	}
	if o.NoSync {
		o.Disk = noSync{o.Disk}
	}
	return o, nil
}

// Log is the log of one replica. Its methods must be called by one goroutine at a time, except
// for Prepare and Snapshots, which may be called at any time. After an error of Append, Sync or
// Close, and after most errors of Roll, the log has failed: it does not know what is on the
// disk, and every later call returns that error. Opening the log again finds out.
type Log struct {
	disk Disk
	opts Options
	id   Identity
	lock io.Closer

	failed error
	older  []*segment // sealed segments, oldest first
	now    *segment   // the segment being written
	file   File       // the file of now
	track  track

	zeros   []byte // for lengthen
	buf     []byte // the next round, with room for its head
	records uint32

	spares    *spares
	snapshots *Snapshots
	peers     *peers
	stats     Stats
}

// Stats counts what a log did since it was opened.
type Stats struct {
	Rounds   uint64 // rounds written, each with one flush of a segment
	Records  uint64 // records in them
	Bytes    uint64 // their size, including heads and padding
	Segments int    // existing segments
	Spares   int    // segments for reuse
	Aside    uint64 // rounds written by a kernel thread, see SyncAside
}

// Stats returns the statistics of the log.
func (l *Log) Stats() Stats {
	s := l.stats
	s.Segments = len(l.older) + 1
	s.Spares = l.spares.count()
	return s
}

// Identity returns the identity of the log.
func (l *Log) Identity() Identity { return l.id }

// Last returns index and term of the last appended entry, or of the snapshot before the log.
func (l *Log) Last() (index, term uint64) {
	term, _ = l.track.term(l.track.last)
	return l.track.last, term
}

// Snapshots returns the snapshots in the log's directory.
func (l *Log) Snapshots() *Snapshots { return l.snapshots }

// Append adds copies of records to the round that the next Sync writes. An entry must follow an
// existing one, and replaces all entries from its index on. A record that cannot be appended is
// a bug of the caller, and fails the log.
func (l *Log) Append(records ...Record) error {
	if l.failed != nil {
		return l.failed
	}
	for i := range records {
		if err := l.admit(&records[i]); err != nil {
			return l.fail(fmt.Errorf("append %s record: %w", records[i].Kind, err))
		}
		l.put(&records[i])
	}
	return nil
}

// admit checks a record and updates the track.
func (l *Log) admit(r *Record) error {
	if r.Kind == 0 || r.Kind > MaxKind {
		return fmt.Errorf("kinds are 1 to %d", MaxKind)
	}
	if int64(len(l.buf))+int64(len(r.Data)) > maxRound-64 {
		return fmt.Errorf("a round holds at most %d bytes", maxRound)
	}
	switch r.Kind {
	case Entry:
		if err := l.track.check(r.Index, r.Term); err != nil {
			return err
		}
		l.track.add(r.Index, r.Term)
		l.now.maxIndex = max(l.now.maxIndex, r.Index)
	case Reset:
		l.track = newTrack(r.Index, r.Term)
		l.now.maxIndex = max(l.now.maxIndex, r.Index)
	}
	return nil
}

func (l *Log) put(r *Record) {
	if len(l.buf) == 0 {
		l.buf = append(l.buf, make([]byte, roundHead)...)
	}
	l.buf = appendRecord(l.buf, r)
	l.records++
}

// Pending returns the size of the next round so far, in bytes.
func (l *Log) Pending() int { return len(l.buf) }

// Sync writes and flushes all records since the last Sync as one round, in one call if the
// system supports it. When it returns nil, the records survive any crash. It does nothing if
// there are none.
//
// After an error it is unknown what the disk has: the kernel drops the pages that it could not
// write and marks them clean, so that a second flush would succeed without them. Therefore the
// error is final.
func (l *Log) Sync() error { return l.sync(false) }

// SyncAside is Sync for a process with other work to do: a kernel thread writes and flushes, if
// the system has io_uring, while the goroutine is parked. On its own this takes longer than a
// blocking call.
func (l *Log) SyncAside() error { return l.sync(true) }

func (l *Log) sync(aside bool) error {
	if l.failed != nil {
		return l.failed
	}
	if l.records == 0 {
		return nil
	}
	s := l.now
	records := l.records
	out, chain := sealRound(l.buf, records, s.rounds+1, s.end, s.seed, s.chain)
	size := len(out)
	// Zeros follow the round, so that the end can be distinguished from a torn head in a reused
	// file, too. The next round overwrites them.
	var zeros [roundHead]byte
	out = append(out, zeros[:]...)
	if err := l.write(out, aside); err != nil {
		return l.fail(err)
	}
	s.end += int64(size)
	s.chain = chain
	s.rounds++
	s.length = max(s.length, s.end+roundHead)
	l.stats.Rounds++
	l.stats.Records += uint64(records)
	l.stats.Bytes += uint64(size)
	l.buf, l.records = out[:0], 0
	if cap(out) > keepBuffer {
		l.buf = nil
	}
	return nil
}

// write writes a round and flushes it.
func (l *Log) write(out []byte, aside bool) error {
	s := l.now
	end := s.end + int64(len(out))
	if !l.grows(end) {
		aside, err := writeSync(l.file, out, s.end, aside)
		if err != nil {
			return fmt.Errorf("write and flush %s: %w", s.file, withSpaceHint(err))
		}
		if aside {
			l.stats.Aside++
		}
		return nil
	}
	if _, err := l.file.WriteAt(out, s.end); err != nil {
		return fmt.Errorf("write %s: %w", s.file, withSpaceHint(err))
	}
	if err := l.lengthen(end); err != nil {
		return err
	}
	if err := l.file.Sync(); err != nil { // includes the zeros
		return fmt.Errorf("flush %s: %w", s.file, err)
	}
	return nil
}

// ahead is by how much a growing file is extended at once.
const ahead = 1 << 20

// grows reports whether the file must be extended for a round that ends at end.
func (l *Log) grows(end int64) bool {
	return end > l.now.length && end+ahead <= l.opts.SegmentBytes
}

// lengthen extends the file with zeros behind a round that ends at end: a flush takes half as
// long again if it changes the length of a file, or writes blocks for the first time. This only
// improves speed, so the log does without it if the disk, a quota or the limit on file sizes is
// exhausted, or if the segment is small.
func (l *Log) lengthen(end int64) error {
	s := l.now
	if l.zeros == nil {
		l.zeros = make([]byte, ahead)
	}
	n, err := l.file.WriteAt(l.zeros, end)
	if err != nil && !isFull(err) && !errors.Is(err, syscall.EFBIG) {
		return fmt.Errorf("lengthen %s: %w", s.file, err)
	}
	s.length = end + int64(n)
	return nil
}

// fail makes err final.
func (l *Log) fail(err error) error {
	if l.failed == nil {
		l.failed = err
	}
	return err
}

// Full reports whether it is time to call Roll: less than a sixteenth of the segment is left. A
// late call does no harm, since the file can grow beyond its size.
func (l *Log) Full() bool {
	return l.now.end+int64(len(l.buf)) > l.opts.SegmentBytes-l.opts.SegmentBytes/16
}

// HalfFull reports whether it is time to call Prepare.
func (l *Log) HalfFull() bool {
	return l.now.end+int64(len(l.buf)) > l.opts.SegmentBytes/2
}

// Release says that entries up to index are no longer needed, because a snapshot has them and
// no replica asks for them. Segments without later entries are reused. Release does not change
// the segment being written.
func (l *Log) Release(index uint64) error {
	if l.failed != nil {
		return l.failed
	}
	if newest := l.snapshots.newest(); index > newest {
		return fmt.Errorf("release entries up to %d: the newest snapshot ends at %d", index, newest)
	}
	for len(l.older) > 0 && l.older[0].maxIndex <= index {
		// Oldest first and one durable rename at a time, so that a crash leaves neither a gap
		// in the numbers nor the old name on a file that is being reused.
		if err := l.retire(l.older[0].file); err != nil {
			return l.fail(fmt.Errorf("release %s: %w", l.older[0].file, err))
		}
		l.older = l.older[1:]
	}
	oldest := l.now
	if len(l.older) > 0 {
		oldest = l.older[0]
	}
	l.track.forget(min(index, oldest.lastIndex) + 1)
	return nil
}

// retire keeps a segment for reuse, or removes it if there are enough.
func (l *Log) retire(file string) error {
	name, wanted := l.spares.reserve(l.opts.Spares)
	var err error
	if wanted {
		err = l.disk.Rename(file, name)
	} else {
		err = l.disk.Remove(file)
	}
	if err != nil {
		return err
	}
	if err := l.disk.SyncDir(); err != nil {
		return err
	}
	if wanted {
		l.spares.put(name)
	}
	return nil
}

// Close writes the pending records and a last round, which proves that the log ends there, and
// releases the directory. If the log has failed, Close only releases the directory and returns
// the first error.
func (l *Log) Close() error {
	if errors.Is(l.failed, ErrClosed) {
		return ErrClosed
	}
	// A separate round: pending records must not be in the one round whose damage looks like a
	// torn write.
	err := l.Sync()
	if err == nil {
		l.put(&Record{Kind: kindClose})
		err = l.Sync()
	}
	l.failed = ErrClosed
	return errors.Join(err, l.file.Close(), l.lock.Close())
}
