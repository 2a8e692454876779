package wal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
	"github.com/weirdb/weir/internal/wire/pgrepl"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// ScopeBase is the Scope in the manifest of a base backup.
const ScopeBase = "base"

// KindBase is the kind of a base backup's chunks: pieces of the tar files that the server sends
// (one per tablespace), and backup_manifest.
const KindBase archive.Kind = "base"

// pieceBytes is the size of a chunk, in bytes of a tar file. It stays below the limit of S3 for
// one object. The pieces of a file, put together, are the tar file again:
//
//	zstd -dc base/base.tar/*.zst | tar x
const pieceBytes = 1 << 30

// manifestPath is the path of the chunk that holds the server's own list of files and
// checksums, which pg_verifybackup reads.
const manifestPath = "base/backup_manifest"

// BaseOptions say how a base backup is taken.
type BaseOptions struct {
	// DSN is the server to copy; its role needs the REPLICATION attribute. Required.
	DSN string
	// Spread makes the server spread its checkpoint over minutes, so that other sessions do not
	// notice it. Default: false, the checkpoint is fast.
	Spread bool
	// NoWAL leaves out the log that is needed to start the backup, which then has to be
	// archived separately. Default: false.
	NoWAL bool
	// MaxRate limits the rate at which the server sends, in bytes per second. Default: 0, no
	// limit.
	MaxRate int64
	// Settings are written to the manifest. Default: none.
	Settings map[string]string
	// Progress counts the bytes that were copied. Default: nil, progress is not counted.
	Progress *bulk.Progress
}

// TakeBase copies the files of a whole cluster into w and completes it. If it fails, it aborts
// w, which removes everything it wrote: a second attempt is a new backup.
func TakeBase(ctx context.Context, opts BaseOptions, w *archive.Writer) (*archive.Manifest, error) {
	m, err := takeBase(ctx, opts, w)
	if err != nil {
		return nil, errors.Join(err, w.Abort(false))
	}
	return m, nil
}

func takeBase(ctx context.Context, opts BaseOptions, w *archive.Writer) (_ *archive.Manifest, err error) {
	opts.Progress.Phase("connect")
	cfg, err := pgwire.ParseDSN(opts.DSN)
	if err != nil {
		return nil, err
	}
	conn, err := pgrepl.Connect(ctx, cfg, pgrepl.Physical)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ignoreBroken(conn.Close(), err)) }()
	system, err := conn.Identify(ctx)
	if err != nil {
		return nil, err
	}
	version, err := conn.Show(ctx, "server_version")
	if err != nil {
		return nil, err
	}
	opts.Progress.Phase("checkpoint")
	s := &baseSink{ctx: ctx, w: w, progress: opts.Progress}
	b, err := conn.BaseBackup(ctx, pgrepl.BackupConfig{
		Label: w.ID(), Fast: !opts.Spread, WAL: !opts.NoWAL, Manifest: conn.Version() >= 130000, Sizes: true,
		MaxRate: int((opts.MaxRate + 1023) / 1024),
	}, s, func(b pgrepl.Backup) {
		opts.Progress.Phase("files")
		for _, t := range b.Tablespaces {
			opts.Progress.Expect(t.Size, 1)
		}
	})
	if err != nil {
		return nil, errors.Join(err, s.abort())
	}
	opts.Progress.Phase("manifest")
	m := archive.Manifest{
		Summary: archive.Summary{
			Engine: archive.PostgreSQL, Scope: ScopeBase,
			Server:   archive.Server{Version: version, Number: conn.Version(), SystemID: system.ID},
			Position: archive.Position{Time: time.Now().UTC(), LSN: b.Stop.String(), Timeline: int(b.StopTimeline)},
		},
		Options: opts.Settings,
		Attributes: map[string]string{
			"start_lsn": b.Start.String(), "start_timeline": strconv.Itoa(int(b.StartTimeline)),
			"wal": strconv.FormatBool(!opts.NoWAL),
		},
	}
	for _, t := range b.Tablespaces {
		if t.OID != 0 {
			m.Attributes["tablespace."+strconv.Itoa(int(t.OID))] = t.Location
		}
	}
	return w.Finish(ctx, m)
}

// baseSink writes the files that the server sends as chunks.
type baseSink struct {
	ctx      context.Context
	w        *archive.Writer
	progress *bulk.Progress
	open     *pieces
}

// Archive begins the tar file of a tablespace.
func (s *baseSink) Archive(t pgrepl.Tablespace) (io.WriteCloser, error) {
	s.open = &pieces{sink: s, name: "base/" + t.Archive() + "/", done: s.progress.Begin(t.Archive())}
	return s.open, nil
}

// Manifest begins the server's list of files.
func (s *baseSink) Manifest() (io.WriteCloser, error) {
	s.open = &pieces{sink: s, name: manifestPath, single: true, done: func() {}}
	return s.open, nil
}

// abort removes the chunk that was being written when the server stopped sending.
func (s *baseSink) abort() error {
	if s.open == nil {
		return nil
	}
	return s.open.abort()
}

// pieces writes one file of the server as a series of chunks.
type pieces struct {
	sink   *baseSink
	name   string
	single bool
	done   func()
	part   int
	room   int64
	chunk  *archive.ChunkWriter
}

// Write implements io.Writer.
func (p *pieces) Write(b []byte) (int, error) {
	n := 0
	for len(b) > 0 {
		if p.room == 0 {
			if err := p.next(); err != nil {
				return n, err
			}
		}
		m, err := p.chunk.Write(b[:min(int64(len(b)), p.room)])
		n += m
		p.room -= int64(m)
		p.sink.progress.Add(int64(m), 0)
		if err != nil {
			return n, errors.Join(err, p.abort()) // Close would fail by the same error again
		}
		b = b[m:]
	}
	return n, nil
}

// next begins the next chunk.
func (p *pieces) next() error {
	if err := p.closeChunk(); err != nil {
		return err
	}
	p.part++
	info := archive.ChunkInfo{Path: p.name, Kind: KindBase, Part: p.part, Content: "tar"}
	p.room = pieceBytes
	if p.single {
		info.Content, p.room = "json", 1<<62
	} else {
		info.Path += fmt.Sprintf("%04d", p.part)
	}
	var err error
	p.chunk, err = p.sink.w.Chunk(p.sink.ctx, info)
	return err
}

// abort removes the chunk that is being written.
func (p *pieces) abort() error {
	if p.chunk == nil {
		return nil
	}
	c := p.chunk
	p.chunk, p.room = nil, 0
	return c.Abort()
}

func (p *pieces) closeChunk() error {
	if p.chunk == nil {
		return nil
	}
	c := p.chunk
	p.chunk = nil
	if err := c.Close(); err != nil {
		return errors.Join(err, c.Abort())
	}
	return nil
}

// Close completes the file.
func (p *pieces) Close() error {
	p.done()
	return p.closeChunk()
}

// baseInfo is what the manifest of a base backup says about it.
type baseInfo struct {
	Start, Stop  pgrepl.LSN
	StopTimeline uint32
	withLog      bool
	tablespaces  map[string]string // location by OID
}

func readBase(m *archive.Manifest) (baseInfo, error) {
	b := baseInfo{StopTimeline: uint32(m.Position.Timeline), withLog: m.Attributes["wal"] == "true", tablespaces: map[string]string{}}
	if m.Scope != ScopeBase {
		return b, fmt.Errorf("backup %s is of a %s, not a base backup", m.ID, m.Scope)
	}
	var err, err2 error
	b.Start, err = pgrepl.ParseLSN(m.Attributes["start_lsn"])
	b.Stop, err2 = pgrepl.ParseLSN(m.Position.LSN)
	if err = errors.Join(err, err2); err != nil {
		return b, fmt.Errorf("read manifest of %s: %w", m.ID, err)
	}
	if b.Start == 0 || b.Stop < b.Start || b.StopTimeline == 0 {
		return b, fmt.Errorf("read manifest of %s: positions %s to %s on timeline %d make no sense", m.ID, b.Start, b.Stop, b.StopTimeline)
	}
	for name, location := range m.Attributes {
		if oid, ok := strings.CutPrefix(name, "tablespace."); ok {
			b.tablespaces[oid] = location
		}
	}
	return b, nil
}
