package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// SnapshotReader reads a snapshot: Read returns the state, which is verified before; File
// returns the raw file, to be sent to another replica.
type SnapshotReader struct {
	info  SnapshotInfo
	file  string
	f     File
	size  int64
	at    int64
	sum   uint32
	total uint64
	chunk []byte // not yet read
	buf   []byte
	err   error // of every further Read
}

// Open opens a snapshot of the list. The reader stays valid when the snapshot is pruned.
func (s *Snapshots) Open(info SnapshotInfo) (*SnapshotReader, error) {
	return openSnapshot(s.disk, snapshotName(info.Index, info.Term), s.cluster, info)
}

// openSnapshot opens the file of the snapshot info of cluster; an empty cluster matches any.
func openSnapshot(disk Disk, file, cluster string, info SnapshotInfo) (*SnapshotReader, error) {
	f, err := disk.Open(file, false)
	if err != nil {
		return nil, fmt.Errorf("open snapshot: %w", err)
	}
	r := &SnapshotReader{f: f, file: file}
	if err := r.begin(cluster, info); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return r, nil
}

// begin reads the head.
func (r *SnapshotReader) begin(cluster string, want SnapshotInfo) error {
	var err error
	if r.size, err = r.f.Size(); err != nil {
		return fmt.Errorf("find size of %s: %w", r.file, err)
	}
	b := make([]byte, snapshotHead)
	if r.size < snapshotHead {
		return corrupt(r.file, r.size, "the file ends inside the head")
	}
	if err := readFull(r.f, b, 0); err != nil {
		return fmt.Errorf("read head of %s: %w", r.file, err)
	}
	le := binary.LittleEndian
	if string(b[:8]) != snapshotMagic {
		return corrupt(r.file, 0, "this is not a snapshot")
	}
	clusterLen, metaLen := le.Uint32(b[32:]), le.Uint32(b[36:])
	if clusterLen > maxMeta || metaLen > maxMeta || r.size < snapshotHead+int64(clusterLen)+int64(metaLen) {
		return corrupt(r.file, 0, "the head has a length that cannot be")
	}
	b = append(b, make([]byte, clusterLen+metaLen)...)
	if err := readFull(r.f, b[snapshotHead:], snapshotHead); err != nil {
		return fmt.Errorf("read head of %s: %w", r.file, err)
	}
	if le.Uint32(b[12:]) != checksum(checksum(0, b[:12]), b[16:]) {
		return corrupt(r.file, 0, "the checksum of the head does not match")
	}
	if v := le.Uint32(b[8:]); v != formatVersion {
		return &VersionError{File: r.file, Version: v}
	}
	r.info = SnapshotInfo{Index: le.Uint64(b[16:]), Term: le.Uint64(b[24:]), Meta: b[snapshotHead+clusterLen:], Bytes: r.size}
	if have := string(b[snapshotHead : snapshotHead+clusterLen]); cluster != "" && have != cluster {
		return corrupt(r.file, 0, "it is of cluster %q, not of %q", have, cluster)
	}
	if r.info.Index != want.Index || r.info.Term != want.Term {
		return corrupt(r.file, 0, "it is snapshot %d of term %d", r.info.Index, r.info.Term)
	}
	r.at, r.sum = int64(len(b)), checksum(0, b)
	return nil
}

// Info returns index, term, meta and size of the snapshot.
func (r *SnapshotReader) Info() SnapshotInfo { return r.info }

// File returns the raw file, for [Receiver.Write]. It may be read concurrently with Read, until
// Close.
func (r *SnapshotReader) File() *io.SectionReader { return io.NewSectionReader(r.f, 0, r.size) }

// Close closes the file.
func (r *SnapshotReader) Close() error { return r.f.Close() }

// Read reads the state. At io.EOF it was complete and valid.
func (r *SnapshotReader) Read(p []byte) (int, error) {
	for len(r.chunk) == 0 && r.err == nil {
		r.chunk, r.err = r.next()
	}
	n := copy(p, r.chunk)
	r.chunk = r.chunk[n:]
	if n == 0 && len(p) > 0 {
		return 0, r.err
	}
	return n, nil
}

// next reads a chunk. It returns io.EOF at the end.
func (r *SnapshotReader) next() ([]byte, error) {
	le := binary.LittleEndian
	var h [chunkHead]byte
	if err := r.read(h[:], r.at); err != nil {
		return nil, err
	}
	length := le.Uint32(h[:])
	end := length == chunkEnd
	switch {
	case end:
		length = 8
	case length == 0 || length > chunkBytes:
		return nil, corrupt(r.file, r.at, "a chunk cannot have %d bytes", length)
	}
	if uint32(len(r.buf)) < length {
		r.buf = make([]byte, length)
	}
	data := r.buf[:length]
	if err := r.read(data, r.at+chunkHead); err != nil {
		return nil, err
	}
	sum := checksum(checksum(r.sum, h[:4]), data)
	if le.Uint32(h[4:]) != sum {
		return nil, corrupt(r.file, r.at, "the checksum of the chunk does not match")
	}
	at := r.at
	r.at, r.sum = r.at+chunkHead+int64(length), sum
	if !end {
		r.total += uint64(length)
		return data, nil
	}
	if le.Uint64(data) != r.total || r.at != r.size {
		return nil, corrupt(r.file, at, "the file does not end where it says")
	}
	return nil, io.EOF
}

func (r *SnapshotReader) read(b []byte, at int64) error {
	if at+int64(len(b)) > r.size {
		return corrupt(r.file, r.size, "the file is cut short")
	}
	if err := readFull(r.f, b, at); err != nil {
		return fmt.Errorf("read %s at %d: %w", r.file, at, err)
	}
	return nil
}

// Verify reads a snapshot to its end. If it is damaged, the error is a *CorruptError.
func (s *Snapshots) Verify(info SnapshotInfo) error {
	r, err := s.Open(info)
	if err != nil {
		return err
	}
	return errors.Join(r.drain(), r.Close())
}

// drain reads the rest.
func (r *SnapshotReader) drain() error {
	for {
		switch _, err := r.next(); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}
