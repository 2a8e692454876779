package wal

import (
	"errors"
	"fmt"
	"strings"
	"sync"
)

// Receiver takes in a snapshot that a peer sends, as pieces of its file. It
// counts only after Finish. A Receiver that is given up without Abort can be
// taken up again by the next [Snapshots.Receive], in another process, too. One
// goroutine uses it; the next Receive may take its file away meanwhile.
type Receiver struct {
	snapshots *Snapshots
	info      SnapshotInfo // Bytes is what the whole file will have
	part      string
	offset    int64
	backlog   int64 // bytes written since the last flush

	mu sync.Mutex // held while f is used
	f  File       // guarded by mu; nil once it is closed
}

var errGivenUp = errors.New("it was given up for another one")

// partName names the file of a snapshot that is being received.
func partName(info SnapshotInfo) string {
	return snapshotName(info.Index, info.Term) + fmt.Sprintf("-%d", info.Bytes) + partSuffix
}

// parsePartName returns the index of the snapshot that a part file is of.
func parsePartName(name string) (uint64, bool) {
	const size = len(snapshotPrefix) + 41
	if len(name) < size || !strings.HasSuffix(name, partSuffix) {
		return 0, false
	}
	index, _, ok := parseSnapshotName(name[:size])
	return index, ok
}

// Receive begins or resumes to receive the snapshot info, whose file has
// info.Bytes. What a peer sends is to begin at Offset. Any other snapshot that
// was being received is given up.
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

// begin opens the part file, after what is good in it, and removes others.
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
	if r.offset, err = r.good(); err != nil {
		return err
	}
	r.f, err = r.snapshots.disk.Open(r.part, true)
	return err
}

// good is how much of the part file verifies: whole chunks only, because a
// crash may have torn what was written last.
func (r *Receiver) good() (int64, error) {
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

// Offset is where the next bytes belong.
func (r *Receiver) Offset() int64 { return r.offset }

// Write takes bytes of the file in which begin at offset; it must be at most
// Offset, what is known already is passed over.
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

// Finish verifies the whole file and makes it a snapshot. When it does not
// verify, Finish returns a *CorruptError, and the next Receive begins anew.
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

// closed reports whether the file is, by whomever.
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

// Abort gives the snapshot up and removes what was received.
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

// Close keeps what was received, to be resumed.
func (r *Receiver) Close() error { return r.release() }

// release closes the file and lets another Receive begin.
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
