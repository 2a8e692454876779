package wal

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
)

// The format of a snapshot file:
//
//	"weirsnap" | version u32 | crc u32 | index u64 | term u64 | cluster length u32 | meta length u32 | cluster | meta
//	chunk: length u32 (1 to 1 MiB) | crc u32 | data
//	end:   length u32 (all ones)   | crc u32 | bytes of all chunks' data u64
//
// Each checksum continues the previous one, from the head to the end, so that no chunk can be
// left out, moved or taken from another snapshot. Nothing follows the end.
const (
	snapshotMagic  = "weirsnap"
	snapshotPrefix = "snapshot-"
	partSuffix     = ".part"

	snapshotHead = 40      // bytes before cluster and meta
	chunkHead    = 8       // bytes before a chunk's data
	chunkBytes   = 1 << 20 // data of a full chunk
	chunkEnd     = 1<<32 - 1
	maxMeta      = 1 << 20 // bytes of cluster or meta

	// backlogBytes is how much is written between flushes: a flush of the log on the same disk
	// waits for the unwritten data of other files.
	backlogBytes = 8 << 20
)

// SnapshotInfo describes a snapshot.
type SnapshotInfo struct {
	Index uint64 `json:"index"` // of the last entry in it
	Term  uint64 `json:"term"`  // of that entry
	Meta  []byte `json:"-"`     // the caller's data, such as the members at that entry; at most 1 MiB
	Bytes int64  `json:"bytes"` // size of the file
}

func snapshotName(index, term uint64) string {
	return fmt.Sprintf("%s%020d-%020d", snapshotPrefix, index, term)
}

func parseSnapshotName(name string) (index, term uint64, ok bool) {
	s, ok := strings.CutPrefix(name, snapshotPrefix)
	if !ok || len(s) != 41 || s[20] != '-' {
		return 0, 0, false
	}
	index, ok1 := parseDigits(s[:20])
	term, ok2 := parseDigits(s[21:])
	return index, term, ok1 && ok2
}

func isSnapshot(name string) bool {
	_, _, ok := parseSnapshotName(name)
	return ok
}

// Snapshots are the snapshot files of a log. Safe for concurrent use.
type Snapshots struct {
	disk    Disk
	cluster string

	mu    sync.Mutex
	list  []SnapshotInfo // usable as far as known, by index and term
	other []string       // unusable files

	receiving sync.Mutex // held while a received file is read, which may take long
	part      *Receiver  // the snapshot being received
}

// openSnapshots lists the snapshots on a disk, reading only their heads. The errors say which
// files are unusable; Prune removes those.
func openSnapshots(disk Disk, cluster string) (*Snapshots, []error, error) {
	names, err := disk.List()
	if err != nil {
		return nil, nil, fmt.Errorf("list files: %w", err)
	}
	s := &Snapshots{disk: disk, cluster: cluster}
	var passed []error
	for _, name := range names {
		index, term, ok := parseSnapshotName(name)
		if !ok {
			continue
		}
		r, err := openSnapshot(disk, name, cluster, SnapshotInfo{Index: index, Term: term})
		var bad *CorruptError
		if errors.As(err, &bad) {
			passed = append(passed, err)
			s.other = append(s.other, name)
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		s.list = append(s.list, r.info)
		if err := r.Close(); err != nil {
			return nil, nil, fmt.Errorf("close %s: %w", name, err)
		}
	}
	s.sort()
	return s, passed, nil
}

func (s *Snapshots) sort() {
	slices.SortFunc(s.list, func(a, b SnapshotInfo) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Term, b.Term))
	})
}

// List returns the snapshots, oldest first.
func (s *Snapshots) List() []SnapshotInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.list)
}

// newest returns the index of the newest snapshot, 0 if there is none.
func (s *Snapshots) newest() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) == 0 {
		return 0
	}
	return s.list[len(s.list)-1].Index
}

// add adds a durable snapshot.
func (s *Snapshots) add(info SnapshotInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(info)
	s.list = append(s.list, info)
	s.sort()
}

func (s *Snapshots) drop(info SnapshotInfo) {
	s.list = slices.DeleteFunc(s.list, func(o SnapshotInfo) bool { return o.Index == info.Index && o.Term == info.Term })
}

// markUnusable removes an unusable snapshot from the list.
func (s *Snapshots) markUnusable(info SnapshotInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(info)
	s.other = append(s.other, snapshotName(info.Index, info.Term))
}

// Create creates a snapshot of the state after entry info.Index, which writeTo writes. When
// Create returns nil, the snapshot is durable; before, it does not exist. Create sets
// info.Bytes.
func (s *Snapshots) Create(info SnapshotInfo, writeTo func(io.Writer) error) (SnapshotInfo, error) {
	if info.Index == 0 || len(info.Meta) > maxMeta {
		return info, fmt.Errorf("create snapshot %d: it needs an index and at most %d bytes of meta", info.Index, maxMeta)
	}
	name := snapshotName(info.Index, info.Term)
	temp := name + tempSuffix
	f, err := s.disk.Create(temp)
	if err != nil {
		return info, fmt.Errorf("create %s: %w", temp, withSpaceHint(err))
	}
	info.Bytes, err = s.write(f, info, writeTo)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return info, errors.Join(fmt.Errorf("write %s: %w", temp, withSpaceHint(err)), s.disk.Remove(temp))
	}
	if err := s.commit(temp, info); err != nil {
		return info, err
	}
	return info, nil
}

// commit gives a complete and flushed file its name.
func (s *Snapshots) commit(from string, info SnapshotInfo) error {
	name := snapshotName(info.Index, info.Term)
	if err := s.disk.Rename(from, name); err != nil {
		return fmt.Errorf("name %s: %w", name, err)
	}
	if err := s.disk.SyncDir(); err != nil {
		return fmt.Errorf("flush directory: %w", err)
	}
	s.add(info)
	return nil
}

func (s *Snapshots) write(f File, info SnapshotInfo, writeTo func(io.Writer) error) (int64, error) {
	h := encodeSnapshotHead(s.cluster, info)
	if _, err := f.WriteAt(h, 0); err != nil {
		return 0, err
	}
	w := &chunkWriter{f: f, at: int64(len(h)), sum: checksum(0, h), buf: make([]byte, chunkHead)}
	if err := writeTo(w); err != nil {
		return 0, err
	}
	return w.finish()
}

// Prune removes all but the newest keep snapshots (at least one), and unusable snapshots older
// than these.
func (s *Snapshots) Prune(keep int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := max(0, len(s.list)-max(1, keep))
	if len(s.list) == 0 {
		return nil
	}
	oldest := s.list[first]
	for len(s.list) > 0 && s.list[0].Index < oldest.Index {
		if err := s.disk.Remove(snapshotName(s.list[0].Index, s.list[0].Term)); err != nil {
			return fmt.Errorf("prune snapshots: %w", err)
		}
		s.list = s.list[1:]
	}
	limit := snapshotName(oldest.Index, oldest.Term)
	for i := 0; i < len(s.other); {
		if s.other[i] >= limit {
			i++
			continue
		}
		if err := s.disk.Remove(s.other[i]); err != nil {
			return fmt.Errorf("prune snapshots: %w", err)
		}
		s.other = slices.Delete(s.other, i, i+1)
	}
	return nil
}

func encodeSnapshotHead(cluster string, info SnapshotInfo) []byte {
	le := binary.LittleEndian
	b := append(make([]byte, 0, snapshotHead+len(cluster)+len(info.Meta)), snapshotMagic...)
	b = le.AppendUint32(b, formatVersion)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint64(b, info.Index)
	b = le.AppendUint64(b, info.Term)
	b = le.AppendUint32(b, uint32(len(cluster)))
	b = le.AppendUint32(b, uint32(len(info.Meta)))
	b = append(append(b, cluster...), info.Meta...)
	le.PutUint32(b[12:], checksum(checksum(0, b[:12]), b[16:]))
	return b
}

// chunkWriter divides what is written into chunks.
type chunkWriter struct {
	f       File
	at      int64
	flushed int64 // bytes up to here are durable
	sum     uint32
	total   uint64
	buf     []byte // the current chunk, with room for its head
}

func (w *chunkWriter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		k := min(len(p), chunkHead+chunkBytes-len(w.buf))
		w.buf = append(w.buf, p[:k]...)
		p = p[k:]
		if len(w.buf) == chunkHead+chunkBytes {
			if err := w.flush(uint32(chunkBytes)); err != nil {
				return n - len(p), err
			}
		}
	}
	return n, nil
}

// flush writes the chunk in buf.
func (w *chunkWriter) flush(length uint32) error {
	le := binary.LittleEndian
	le.PutUint32(w.buf, length)
	w.sum = checksum(checksum(w.sum, w.buf[:4]), w.buf[chunkHead:])
	le.PutUint32(w.buf[4:], w.sum)
	if _, err := w.f.WriteAt(w.buf, w.at); err != nil {
		return err
	}
	w.at += int64(len(w.buf))
	if length != chunkEnd {
		w.total += uint64(length)
	}
	w.buf = w.buf[:chunkHead]
	if w.at-w.flushed < backlogBytes {
		return nil
	}
	w.flushed = w.at
	return w.f.Sync()
}

// finish writes the last chunk and the end, and returns the file's size.
func (w *chunkWriter) finish() (int64, error) {
	if n := len(w.buf) - chunkHead; n > 0 {
		if err := w.flush(uint32(n)); err != nil {
			return 0, err
		}
	}
	w.buf = binary.LittleEndian.AppendUint64(w.buf, w.total)
	if err := w.flush(chunkEnd); err != nil {
		return 0, err
	}
	return w.at, nil
}
