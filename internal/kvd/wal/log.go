package wal

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"syscall"
)

// Options of a log.
type Options struct {
	// SegmentBytes is the size of a segment's file. Default: 64 MiB.
	SegmentBytes int64
	// Spares is how many segments that nobody needs are kept to be written
	// again; more are removed. Negative: none. Default: 2.
	Spares int
	// NoSync leaves out every flush. A crash of the process loses nothing then,
	// a crash of the machine may lose or corrupt anything. Default: false.
	NoSync bool
	// Disk is where the files are. Default: the directory that Open is given.
	Disk Disk
	// Rand is where ids and nonces come from. Default: crypto/rand.
	Rand io.Reader
}

const (
	defaultSegmentBytes = 64 << 20
	defaultSpares       = 2
	minSegmentBytes     = 1 << 10

	// keepBuffer is the largest buffer that is kept for the next round.
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

// Log is the log of one replica. One goroutine at a time may call its methods,
// except for Prepare and Snapshots, which any may call at any time. After an
// error of Append, Sync or Close, and after most of Roll, the log has failed: it
// does not know what is on the disk, so every later call returns that error. What
// is there is found out by opening it again.
type Log struct {
	disk Disk
	opts Options
	id   Identity
	lock io.Closer

	failed error
	older  []*segment // sealed ones, oldest first
	now    *segment   // the one that is written
	file   File       // of now
	track  track

	zeros   []byte // what a growing file is lengthened by
	buf     []byte // the round that is being gathered, with room for its head
	records uint32

	spares    *spares
	snapshots *Snapshots
	peers     *peers
	stats     Stats
}

// Stats counts what a log did since it was opened.
type Stats struct {
	Rounds   uint64 // rounds written, which is flushes of segments
	Records  uint64 // records in them
	Bytes    uint64 // bytes in them, heads and padding included
	Segments int    // segments that exist
	Spares   int    // segments that wait to be written again
	Aside    uint64 // rounds that a thread of the kernel wrote, see SyncAside
}

// Stats returns what the log did so far.
func (l *Log) Stats() Stats {
	s := l.stats
	s.Segments = len(l.older) + 1
	s.Spares = l.spares.count()
	return s
}

// Identity returns whose log it is.
func (l *Log) Identity() Identity { return l.id }

// Last returns index and term of the newest entry that was appended, or of the
// snapshot that the log begins after.
func (l *Log) Last() (index, term uint64) {
	term, _ = l.track.term(l.track.last)
	return l.track.last, term
}

// Snapshots returns the snapshots beside the log.
func (l *Log) Snapshots() *Snapshots { return l.snapshots }

// Append adds records to the round that the next Sync writes. It copies them.
// An entry must follow one that exists, and replaces all from its index on. A
// record that cannot be appended is a defect of the caller and fails the log.
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

// admit checks a record and follows it in the track.
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

// Pending is the size of the gathered round so far, in bytes.
func (l *Log) Pending() int { return len(l.buf) }

// Sync writes what was appended since the last Sync as one round and flushes
// it, with one call where the system can. When it returns nil, the records come back after
// any crash. It does nothing when nothing was appended.
//
// After an error it is unknown what the disk holds: the kernel drops the pages
// that it could not write and calls them clean, so that a second flush would
// succeed without them. Therefore the error is final.
func (l *Log) Sync() error { return l.sync(false) }

// SyncAside is Sync for a process that has other work: a thread of the kernel
// writes and flushes, where the system has io_uring, and the goroutine is parked.
// By itself this takes longer than a call that blocks.
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
	// Zeros follow the round, so that an end can be told from a torn head
	// in a file with a former life, too. The next round overwrites them.
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
	if err := l.file.Sync(); err != nil { // of the zeros, too
		return fmt.Errorf("flush %s: %w", s.file, err)
	}
	return nil
}

// ahead is by how much a file that grows is lengthened at once.
const ahead = 1 << 20

// grows reports that a round which ends at end is a reason to lengthen the file.
func (l *Log) grows(end int64) bool {
	return end > l.now.length && end+ahead <= l.opts.SegmentBytes
}

// lengthen writes zeros behind a round that ends at end, where the file ends, too:
// a flush that changes a file's length, or blocks that were never written, takes
// half as long again. It is a matter of speed alone, so that a full disk, a quota that
// is used up, a limit on the size of files or a segment of a test's size goes without.
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

// Full reports whether it is time to Roll: less than a sixteenth of the segment
// is left. Nothing stops when it is late, the file grows beyond its size then.
func (l *Log) Full() bool {
	return l.now.end+int64(len(l.buf)) > l.opts.SegmentBytes-l.opts.SegmentBytes/16
}

// HalfFull reports whether it is time to Prepare.
func (l *Log) HalfFull() bool {
	return l.now.end+int64(len(l.buf)) > l.opts.SegmentBytes/2
}

// Release says that entries up to index are not needed any more: a snapshot
// covers them, and nobody asks for them. Segments without any other become
// spares. It never touches the segment that is written.
func (l *Log) Release(index uint64) error {
	if l.failed != nil {
		return l.failed
	}
	if newest := l.snapshots.newest(); index > newest {
		return fmt.Errorf("release entries up to %d: the newest snapshot ends at %d", index, newest)
	}
	for len(l.older) > 0 && l.older[0].maxIndex <= index {
		// Oldest first and one durable rename at a time, so that no crash
		// leaves a hole in the numbers, nor the old name on a file that is
		// being written again.
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

// retire makes a segment a spare, or removes it when there are enough.
func (l *Log) retire(file string) error {
	name, wanted := l.spares.place(l.opts.Spares)
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

// Close writes what is gathered and a last round, which proves that the log
// ends there, and gives the directory up. A log that failed is only given up;
// Close returns that first error then.
func (l *Log) Close() error {
	if errors.Is(l.failed, ErrClosed) {
		return ErrClosed
	}
	// A round of its own: what is gathered shall not be in the one round
	// whose damage looks like a torn write.
	err := l.Sync()
	if err == nil {
		l.put(&Record{Kind: kindClose})
		err = l.Sync()
	}
	l.failed = ErrClosed
	return errors.Join(err, l.file.Close(), l.lock.Close())
}
