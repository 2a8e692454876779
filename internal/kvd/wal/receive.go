package wal

import (
	"errors"
	"fmt"
	"strings"
	"sync"
)

// Receiver receives a snapshot of another replica as pieces of its file. The snapshot exists
// only after Finish. If a Receiver is abandoned without Abort, the next [Snapshots.Receive] may
// resume it, even in another process. It must be used by one goroutine, but the next Receive
// may close its file meanwhile.
type Receiver struct {
	snapshots *Snapshots
	info      SnapshotInfo // Bytes is the size of the complete file
	part      string
	offset    int64
	backlog   int64 // bytes written since the last flush

	mu sync.Mutex // held while f is in use
	f  File       // guarded by mu; nil when closed
}

var errGivenUp = errors.New("another one took its place")

// partName returns the file name of a snapshot that is being received.
func partName(info SnapshotInfo) string {
	return snapshotName(info.Index, info.Term) + fmt.Sprintf("-%d", info.Bytes) + partSuffix
}

// parsePartName returns the index of the snapshot of a part file.
func parsePartName(name string) (uint64, bool) {
	const size = len(snapshotPrefix) + 41
	if len(name) < size || !strings.HasSuffix(name, partSuffix) {
		return 0, false
	}
	index, _, ok := parseSnapshotName(name[:size])
	return index, ok
}

// Receive starts or resumes receiving the snapshot info, whose file has info.Bytes. The sender
// must start at Offset. Any other snapshot being received is abandoned.
func (s *Snapshots) Receive(info SnapshotInfo) (*Receiver, error) {
	if info.Index == 0 || info.Bytes <= snapshotHead {
		return nil, fmt.Errorf("receive snapshot %d: %d bytes cannot be one", info.Index, info.Bytes)
	}
	s.receiving.Lock()
	defer s.receiving.Unlock()
	if s.part != nil {
		if err := s.part.close(); err != nil {
			return nil, fmt.Errorf("give up snapshot %d: %w", s.part.info.Index, err)
		}
		s.part = nil
	}
	r := &Receiver{snapshots: s, info: info, part: partName(info)}
	if err := r.begin(); err != nil {
		return nil, fmt.Errorf("receive snapshot %d: %w", info.Index, err)
	}
	s.part = r
	return r, nil
}

// begin opens the part file after its valid part, and removes others.
func (r *Receiver) begin() error {
	files, err := list(r.snapshots.disk)
	if err != nil {
		return err
	}
	exists := false
	for _, name := range files.parts {
		if name == r.part {
			exists = true
			continue
		}
		if err := r.snapshots.disk.Remove(name); err != nil {
			return fmt.Errorf("remove %s: %w", name, err)
		}
	}
	if !exists {
		r.f, err = r.snapshots.disk.Create(r.part)
		return withSpaceHint(err)
	}
	if r.offset, err = r.validBytes(); err != nil {
		return err
	}
	r.f, err = r.snapshots.disk.Open(r.part, true)
	return err
}

// validBytes returns the size of the valid part of the part file: complete chunks only, because a
// crash may have torn the last write.
func (r *Receiver) validBytes() (int64, error) {
	sr, err := openSnapshot(r.snapshots.disk, r.part, r.snapshots.cluster, r.info)
	var bad *CorruptError
	if errors.As(err, &bad) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	err = sr.drain()
	at := sr.at
	if errors.As(err, &bad) {
		err = nil
	}
	return at, errors.Join(err, sr.Close())
}

// Offset returns where the next bytes belong.
func (r *Receiver) Offset() int64 { return r.offset }

// Write writes bytes of the file that begin at offset, which must be at most Offset. Bytes
// before Offset are skipped.
func (r *Receiver) Write(offset int64, data []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.f == nil {
		return fmt.Errorf("receive snapshot %d: %w", r.info.Index, errGivenUp)
	}
	if offset < 0 || offset > r.offset || offset+int64(len(data)) > r.info.Bytes {
		return fmt.Errorf("receive snapshot %d: bytes %d to %d do not belong after %d of %d", r.info.Index, offset, offset+int64(len(data)), r.offset, r.info.Bytes)
	}
	known := r.offset - offset
	if known >= int64(len(data)) {
		return nil
	}
	data = data[known:]
	if _, err := r.f.WriteAt(data, r.offset); err != nil {
		return fmt.Errorf("write %s: %w", r.part, withSpaceHint(err))
	}
	r.offset += int64(len(data))
	if r.backlog += int64(len(data)); r.backlog < backlogBytes {
		return nil
	}
	r.backlog = 0
	if err := r.f.Sync(); err != nil {
		return fmt.Errorf("flush %s: %w", r.part, err)
	}
	return nil
}

// Finish verifies the file and makes it a snapshot. If it is invalid, Finish returns a
// *CorruptError, and the next Receive starts from the beginning.
func (r *Receiver) Finish() (SnapshotInfo, error) {
	if r.closed() {
		return r.info, fmt.Errorf("finish snapshot %d: %w", r.info.Index, errGivenUp)
	}
	if r.offset != r.info.Bytes {
		return r.info, fmt.Errorf("finish snapshot %d: %d of %d bytes were received", r.info.Index, r.offset, r.info.Bytes)
	}
	info, err := r.verify()
	if err == nil {
		err = r.flush()
	}
	var bad *CorruptError
	if errors.As(err, &bad) {
		return info, errors.Join(err, r.Abort())
	}
	if err := errors.Join(err, r.release()); err != nil {
		return info, fmt.Errorf("finish %s: %w", r.part, err)
	}
	return info, r.snapshots.commit(r.part, info)
}

// closed reports whether the file was closed, here or by the next Receive.
func (r *Receiver) closed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.f == nil
}

func (r *Receiver) flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.f == nil {
		return errGivenUp
	}
	return r.f.Sync()
}

func (r *Receiver) verify() (SnapshotInfo, error) {
	sr, err := openSnapshot(r.snapshots.disk, r.part, r.snapshots.cluster, r.info)
	if err != nil {
		return r.info, err
	}
	return sr.info, errors.Join(sr.drain(), sr.Close())
}

// Abort stops receiving and removes what was received.
func (r *Receiver) Abort() error {
	if r.closed() {
		return nil
	}
	if err := r.release(); err != nil {
		return err
	}
	if err := r.snapshots.disk.Remove(r.part); err != nil {
		return fmt.Errorf("remove %s: %w", r.part, err)
	}
	return nil
}

// Close stops receiving and keeps what was received, to be resumed.
func (r *Receiver) Close() error { return r.release() }

// release closes the file, so that another Receive can start.
func (r *Receiver) release() error {
	r.snapshots.receiving.Lock()
	defer r.snapshots.receiving.Unlock()
	if r.snapshots.part == r {
		r.snapshots.part = nil
	}
	return r.close()
}

func (r *Receiver) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.f == nil {
		return nil
	}
	f := r.f
	r.f = nil
	return f.Close()
}
