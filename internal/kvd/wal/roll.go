package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
)

// Roll seals the current segment and starts the next one. The carry must have all records,
// other than entries, that are still valid after everything appended so far: those in older
// segments are void from now on. Roll writes pending records first.
//
// An error before the new segment has its name, for example because the disk is full, does not
// fail the log: it continues in the old segment, and Roll may be called again.
func (l *Log) Roll(carry []Record) error {
	if err := l.Sync(); err != nil {
		return err
	}
	for i := range carry {
		if k := carry[i].Kind; k <= Reset || k > MaxKind {
			return l.fail(fmt.Errorf("carry %s record: only what is alive besides entries is carried", k))
		}
	}
	lastIndex, lastTerm := l.Last()
	next := header{
		number:    l.now.number + 1,
		prevEnd:   l.now.end,
		prevChain: l.now.chain,
		lastIndex: lastIndex,
		lastTerm:  lastTerm,
	}
	s, f, err := l.begin(next, carry)
	if err != nil {
		return fmt.Errorf("begin segment %d: %w", next.number, err)
	}
	// From here on the old segment says that the new one must exist.
	l.put(&Record{Kind: kindSeal})
	if err := l.Sync(); err != nil {
		return errors.Join(err, f.Close())
	}
	old, oldFile := l.now, l.file
	l.older = append(l.older, old)
	l.now, l.file = s, f
	if err := oldFile.Close(); err != nil {
		return l.fail(fmt.Errorf("close %s: %w", old.file, err))
	}
	return nil
}

// begin makes a spare a segment that starts with a carry. The file keeps the spare's name until
// the end, so that a segment with its name is complete.
func (l *Log) begin(h header, carry []Record) (*segment, File, error) {
	name, err := l.spares.take()
	if err != nil {
		return nil, nil, err
	}
	f, err := l.disk.Open(name, true)
	if err != nil {
		return nil, nil, fmt.Errorf("open %s: %w", name, err)
	}
	s, err := l.writeHead(f, h, carry)
	if err != nil {
		// Whatever it contains now, it is still a spare.
		l.spares.put(name)
		return nil, nil, errors.Join(fmt.Errorf("write %s: %w", name, withSpaceHint(err)), f.Close())
	}
	if err := l.disk.Rename(name, s.file); err != nil {
		return nil, nil, l.fail(errors.Join(fmt.Errorf("name %s: %w", s.file, err), f.Close()))
	}
	if err := l.disk.SyncDir(); err != nil {
		return nil, nil, l.fail(errors.Join(fmt.Errorf("flush directory: %w", err), f.Close()))
	}
	return s, f, nil
}

// writeHead writes and flushes the header and the first round of a segment.
func (l *Log) writeHead(f File, h header, carry []Record) (*segment, error) {
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	var nonce [8]byte
	if _, err := io.ReadFull(l.opts.Rand, nonce[:]); err != nil {
		return nil, fmt.Errorf("draw a nonce: %w", err)
	}
	body := make([]byte, roundHead)
	for i := range carry {
		body = appendRecord(body, &carry[i])
	}
	if len(body) > maxRound {
		return nil, fmt.Errorf("the carry has %d bytes, a round holds at most %d", len(body), maxRound)
	}
	h.log = l.id.Log
	h.nonce = binary.LittleEndian.Uint64(nonce[:])
	// Only this many bytes of the segment are certainly durable.
	h.size = max(min(size, l.opts.SegmentBytes), segmentHead+int64(roundHead)+padded(uint32(len(body)-roundHead)))
	out := h.encode()
	seed := headerChecksum(out)
	first, chain := sealRound(body, uint32(len(carry)), 1, segmentHead, seed, seed)
	out = append(out, first...)
	end := int64(len(out))
	out = append(out, make([]byte, roundHead)...)
	if _, err := f.WriteAt(out, 0); err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, l.fail(fmt.Errorf("flush: %w", err))
	}
	l.stats.Rounds++
	l.stats.Records += uint64(len(carry))
	l.stats.Bytes += uint64(end)
	return &segment{
		header: h, file: segmentName(h.number), seed: seed, length: h.size, end: end, chain: chain, rounds: 1,
	}, nil
}

// Prepare creates a spare if there is none, by writing a whole segment of zeros. It is safe for
// concurrent use, and saves the next Roll that work. It must not be called after Close.
func (l *Log) Prepare() error {
	if l.spares.count() > 0 {
		return nil
	}
	name, err := l.spares.create()
	if err != nil {
		return err
	}
	l.spares.put(name)
	return nil
}

const sparePrefix = "spare-"

// spares are files for new segments. Safe for concurrent use.
type spares struct {
	disk Disk
	size int64 // of new ones

	mu    sync.Mutex
	names []string
	next  uint64 // number of the next one
}

// parseSpareName returns the number of a spare.
func parseSpareName(name string) (uint64, bool) {
	digits, ok := strings.CutPrefix(name, sparePrefix)
	if !ok {
		return 0, false
	}
	return parseDigits(digits)
}

func (p *spares) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.names)
}

// name returns an unused name.
func (p *spares) name() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	return fmt.Sprintf("%s%020d", sparePrefix, p.next-1)
}

func (p *spares) put(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.names = append(p.names, name)
}

// reserve returns a name for another spare, unless there are enough.
func (p *spares) reserve(most int) (string, bool) {
	if p.count() >= most {
		return "", false
	}
	return p.name(), true
}

// take returns a spare, and creates one if there is none.
func (p *spares) take() (string, error) {
	p.mu.Lock()
	if n := len(p.names); n > 0 {
		name := p.names[n-1]
		p.names = p.names[:n-1]
		p.mu.Unlock()
		return name, nil
	}
	p.mu.Unlock()
	return p.create()
}

// create creates a file of zeros. They are written and flushed in pieces, so that concurrent
// flushes of the log wait for one piece at most.
func (p *spares) create() (string, error) {
	const piece = 1 << 20
	name := p.name()
	temp := name + tempSuffix
	f, err := p.disk.Create(temp)
	if err != nil {
		return "", fmt.Errorf("create %s: %w", temp, withSpaceHint(err))
	}
	zeros := make([]byte, min(piece, p.size))
	for at := int64(0); at < p.size && err == nil; at += piece {
		if _, err = f.WriteAt(zeros[:min(piece, p.size-at)], at); err == nil {
			err = f.Sync()
		}
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(fmt.Errorf("fill %s with zeros: %w", temp, withSpaceHint(err)), p.disk.Remove(temp))
	}
	if err := p.disk.Rename(temp, name); err != nil {
		return "", fmt.Errorf("name %s: %w", name, err)
	}
	return name, nil
}
