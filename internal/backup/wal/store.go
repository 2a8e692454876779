// Package wal stores what is needed to restore a PostgreSQL cluster byte for byte: base
// backups, and the log written after them. It receives the log as a standby does; a restore
// replays it up to a time, a position or a restore point.
//
// A base backup is a backup like any other. The log is different: it has no end, and each of
// its files must be usable as soon as it is there. So each file is a small backup of its own,
// one tar stream with a manifest, beside the others:
//
//	wal/7432840651712831034/             the cluster's system identifier
//	    cluster.json                     the size of segments
//	    00000001000000000000002A.tar     a segment: 16 MiB of log
//	    00000001000000000000002B.tar
//	    00000001000000000000002C.partial.tar   the newest, as far as received
//	    00000002.history.tar             where timeline 2 branched off
//	    00000001.end.json                the end of the archived part of timeline 1
//	    identity.age                     only with a passphrase
//
// An object appears as a whole or not at all, so a receiver may be killed at any moment: the
// next one continues after the last complete segment, and the server keeps the log from there
// on for the slot.
package wal

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/wire/pgrepl"
)

const (
	root        = "wal/"
	clusterName = "cluster.json"
	keyName     = "identity.age"
	suffix      = ".tar"
	partialMark = ".partial"
	historyMark = ".history"

	// Scope is the Scope in the manifest of a log file.
	Scope = "wal"

	maxCluster = 64 << 10
)

// cluster is the content of cluster.json.
type cluster struct {
	SystemID     string `json:"system_id"`
	SegmentBytes int64  `json:"segment_bytes"`
}

// store is the archived log of one cluster.
type store struct {
	storage archive.Storage
	cluster cluster
	options archive.Options // for writing
}

func clusterDir(system string) string { return root + system + "/" }

func (s *store) dir() string { return clusterDir(s.cluster.SystemID) }

// A file is one object of the log.
type file struct {
	name    string // as the server calls it, with partialMark if it is incomplete
	segment pgrepl.Segment
	partial bool
	history bool
	bytes   int64 // as stored
}

// errNoLog says that no log of a cluster is archived. It does not match archive.ErrNotExist: a
// storage that is not mounted must not look like the end of the log.
var errNoLog = errors.New("no log of this cluster is archived there")

// openStore opens the log of a cluster for reading.
func openStore(ctx context.Context, storage archive.Storage, system string) (*store, error) {
	if !validSystem(system) {
		return nil, fmt.Errorf("open log: %q is no system identifier", system)
	}
	s := &store{storage: storage}
	text, err := readSmall(ctx, storage, clusterDir(system)+clusterName)
	if errors.Is(err, archive.ErrNotExist) {
		return nil, fmt.Errorf("open log in %s: %w", storage, errNoLog)
	}
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	if err := json.Unmarshal(text, &s.cluster); err != nil {
		return nil, fmt.Errorf("open log: read %s: %w", clusterName, err)
	}
	size := s.cluster.SegmentBytes
	if s.cluster.SystemID != system || size < 1<<20 || size > 1<<30 || size&(size-1) != 0 {
		return nil, fmt.Errorf("open log: %s in %s is of cluster %q with segments of %d bytes", clusterName, clusterDir(system), s.cluster.SystemID, size)
	}
	return s, nil
}

// HasLog reports whether log of a cluster is archived in a storage.
func HasLog(ctx context.Context, storage archive.Storage, system string) (bool, error) {
	_, err := openStore(ctx, storage, system)
	if errors.Is(err, errNoLog) {
		return false, nil
	}
	return err == nil, err
}

// validSystem reports whether system is a number, so that nothing else gets into paths.
func validSystem(system string) bool {
	return system != "" && len(system) <= 20 && strings.Trim(system, "0123456789") == ""
}

// createStore opens the log of a cluster for writing, and creates it if it does not exist.
func createStore(ctx context.Context, storage archive.Storage, c cluster, opts archive.Options) (*store, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("begin log: %w", err)
	}
	err = storage.PutNew(ctx, clusterDir(c.SystemID)+clusterName, append(text, '\n'))
	if err != nil && !errors.Is(err, archive.ErrExist) {
		return nil, fmt.Errorf("begin log: %w", err)
	}
	s, err := openStore(ctx, storage, c.SystemID)
	if err != nil {
		return nil, err
	}
	if s.cluster != c {
		return nil, fmt.Errorf("begin log: the server's segments have %d bytes, those in %s %d", c.SegmentBytes, storage, s.cluster.SegmentBytes)
	}
	s.options = opts
	if opts.Encryption.Passphrase != "" {
		recipient, err := s.passphraseKey(ctx, opts.Encryption)
		if err != nil {
			return nil, err
		}
		s.options.Encryption = archive.EncryptionOptions{Recipients: append(slices.Clone(opts.Encryption.Recipients), recipient)}
	}
	return s, nil
}

// list returns all files: segments sorted by name, and history files.
func (s *store) list(ctx context.Context) (segments, histories []file, err error) {
	for o, err := range s.storage.List(ctx, s.dir(), false) {
		if err != nil {
			return nil, nil, fmt.Errorf("list log: %w", err)
		}
		f, ok := s.parse(strings.TrimPrefix(o.Name, s.dir()))
		if !ok {
			continue
		}
		f.bytes = o.Size
		if f.history {
			histories = append(histories, f)
		} else {
			segments = append(segments, f)
		}
	}
	byName := func(a, b file) int { return strings.Compare(a.name, b.name) }
	slices.SortFunc(segments, byName)
	slices.SortFunc(histories, byName)
	return segments, histories, nil
}

// parse parses the name of an object; ok is false if it is not a log file.
func (s *store) parse(object string) (f file, ok bool) {
	f.name, ok = strings.CutSuffix(object, suffix)
	if !ok {
		return f, false
	}
	if id, ok := strings.CutSuffix(f.name, historyMark); ok {
		f.history = true
		_, err := pgrepl.ParseSegment(id+strings.Repeat("0", 16), s.cluster.SegmentBytes)
		return f, err == nil && len(id) == 8
	}
	bare, partial := strings.CutSuffix(f.name, partialMark)
	var err error
	f.partial = partial
	f.segment, err = pgrepl.ParseSegment(bare, s.cluster.SegmentBytes)
	return f, err == nil
}

// put stores a file. When it returns nil, the file is durable.
func (s *store) put(ctx context.Context, name string, content io.Reader, position archive.Position) (err error) {
	object, err := s.storage.Create(ctx, s.dir()+name+suffix)
	if err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("keep %s: %w", name, err), object.Abort())
		}
	}()
	opts := s.options
	opts.ID, opts.Label, opts.Parallel = name, Scope, 1
	w, err := archive.CreateStream(ctx, object, opts)
	if err != nil {
		return err
	}
	if err := s.fill(ctx, w, name, content, position); err != nil {
		return errors.Join(err, w.Abort(false))
	}
	_, err = object.Commit()
	return err
}

// fill writes the one chunk of a file, and its manifest.
func (s *store) fill(ctx context.Context, w *archive.Writer, name string, content io.Reader, position archive.Position) error {
	c, err := w.Chunk(ctx, archive.ChunkInfo{Path: chunkPath(name), Kind: archive.KindLog, Content: Scope})
	if err != nil {
		return err
	}
	if _, err := io.Copy(c, content); err != nil {
		return errors.Join(err, c.Abort())
	}
	if err := c.Close(); err != nil {
		return err
	}
	_, err = w.Finish(ctx, archive.Manifest{Summary: archive.Summary{
		Engine: archive.PostgreSQL, Server: archive.Server{SystemID: s.cluster.SystemID}, Scope: Scope, Position: position,
	}})
	return err
}

func chunkPath(name string) string { return "wal/" + name }

// get writes the content of a file to w, verified, and returns its length. The error matches
// archive.ErrNotExist only if the file does not exist. After an error, the caller must discard
// what was written.
func (s *store) get(ctx context.Context, name string, keys archive.ReadOptions, w io.Writer) (_ int64, err error) {
	in, err := s.storage.Open(ctx, s.dir()+name+suffix, 0)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	n, err := s.read(ctx, in, name, keys, w)
	if errors.Is(err, archive.ErrNotExist) { // the file exists, but something in it is missing
		err = fmt.Errorf("%w: %v", archive.ErrCorrupt, err)
	}
	if err != nil {
		return n, fmt.Errorf("read %s: %w", name, err)
	}
	return n, nil
}

// read reads the stream of a file.
func (s *store) read(ctx context.Context, in io.Reader, name string, keys archive.ReadOptions, w io.Writer) (_ int64, err error) {
	r, err := archive.OpenStream(ctx, in, keys)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	m := r.Manifest()
	if m.ID != name || m.Server.SystemID != s.cluster.SystemID {
		return 0, fmt.Errorf("it holds %s of cluster %s: %w", m.ID, m.Server.SystemID, archive.ErrSwapped)
	}
	chunk, err := r.Chunk(ctx, chunkPath(name))
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(w, chunk)
	return n, errors.Join(err, chunk.Close())
}

// length returns how many bytes of log a file holds; it needs no key. It is 0 for a file that
// does not exist or that is damaged and has to be written again.
func (s *store) length(ctx context.Context, name string) (_ int64, err error) {
	in, err := s.storage.Open(ctx, s.dir()+name+suffix, 0)
	if errors.Is(err, archive.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	r, err := archive.OpenStream(ctx, in, archive.ReadOptions{})
	if err != nil && (ctx.Err() != nil || unread(err)) {
		return 0, fmt.Errorf("read %s: %w", name, err)
	}
	if err != nil {
		return 0, nil
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for _, c := range r.Manifest().Chunks {
		if c.Path == chunkPath(name) {
			return c.PlainBytes, nil
		}
	}
	return 0, nil
}

// unread reports whether err says that the storage could not be read, which tells nothing about
// what it holds.
func unread(err error) bool {
	var file *fs.PathError
	var place *archive.Error
	if !errors.As(err, &file) && !errors.As(err, &place) {
		return false
	}
	return !slices.ContainsFunc([]error{archive.ErrNotExist, archive.ErrIncomplete, io.ErrUnexpectedEOF, io.EOF, tar.ErrHeader}, func(damage error) bool {
		return errors.Is(err, damage)
	})
}

// keys adds the identity that the passphrase opens, if the log is encrypted with one.
func (s *store) keys(ctx context.Context, keys archive.ReadOptions) (archive.ReadOptions, error) {
	if keys.Passphrase == "" {
		return keys, nil
	}
	text, err := readSmall(ctx, s.storage, s.dir()+keyName)
	if errors.Is(err, archive.ErrNotExist) {
		return keys, nil // the log is not encrypted with a passphrase
	}
	if err != nil {
		return keys, fmt.Errorf("read key of log: %w", err)
	}
	identity, err := archive.OpenKeyFile(text, keys.Passphrase)
	if err != nil {
		return keys, fmt.Errorf("key of the log in %s: %w", s.dir(), err)
	}
	keys.Passphrase = ""
	keys.Identities = append(slices.Clone(keys.Identities), []byte(identity.String()))
	return keys, nil
}

// readSmall reads an object that must be small.
func readSmall(ctx context.Context, storage archive.Storage, name string) ([]byte, error) {
	in, err := storage.Open(ctx, name, 0)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	n, err := b.ReadFrom(io.LimitReader(in, maxCluster))
	if err = errors.Join(err, in.Close()); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if n == maxCluster {
		return nil, fmt.Errorf("read %s: it is larger than such a file can be", name)
	}
	return b.Bytes(), nil
}
