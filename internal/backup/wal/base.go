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

// ScopeBase is the scope of a base backup's manifest.
const ScopeBase = "base"

// KindBase is the kind of its chunks: pieces of the tar files that the server
// sends, one for each tablespace, and backup_manifest.
const KindBase archive.Kind = "base"

// pieceBytes is how much of a tar file makes one chunk. Pieces keep within what S3
// takes as one object, and put together again are the tar file:
//
//	zstd -dc base/base.tar/*.zst | tar x
const pieceBytes = 1 << 30

// manifestPath is the chunk with the server's own list of files and checksums, as
// pg_verifybackup reads it.
const manifestPath = "base/backup_manifest"

// BaseOptions say how a base backup is taken.
type BaseOptions struct {
	// DSN of the server; its role needs the right to replicate. Required.
	DSN string
	// Spread has the server spread its checkpoint over minutes, so that others do
	// not feel it. Default: false, at once.
	Spread bool
	// NoWAL leaves out the log that is needed to start the backup, which must
	// then be archived. Default: false.
	NoWAL bool
	// MaxRate bounds what the server sends, in bytes per second. Default: 0, no
	// bound.
	MaxRate int64
	// Settings are noted in the manifest. Default: none.
	Settings map[string]string
	// Progress counts what is done. Default: nil, nobody looks.
	Progress *bulk.Progress
}

// TakeBase copies the files of a whole cluster into w and completes it. When it
// fails w is aborted, and nothing of it stays: another attempt is another backup.
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

// baseSink cuts what the server sends into chunks.
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

// abort gives up a chunk that the server did not finish.
func (s *baseSink) abort() error {
	if s.open == nil || s.open.chunk == nil {
		return nil
	}
	return s.open.chunk.Abort()
}

// pieces is one file of the server, cut into chunks.
type pieces struct {
	sink   *baseSink
	name   string
	single bool
	done   func()
	part   int
	room   int64
	chunk  *archive.ChunkWriter
}

// Write takes bytes.
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
			return n, err
		}
		b = b[m:]
	}
	return n, nil
}

// next begins a chunk.
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

// Close ends the file.
func (p *pieces) Close() error {
	p.done()
	return p.closeChunk()
}

// baseInfo is what a base backup's manifest says of it.
type baseInfo struct {
	Start, Stop  pgrepl.LSN
	StopTimeline uint32
	withLog      bool
	tablespaces  map[string]string // location by OID
}

func readBase(m *archive.Manifest) (baseInfo, error) {
	b := baseInfo{StopTimeline: uint32(m.Position.Timeline), withLog: m.Attributes["wal"] == "true", tablespaces: map[string]string{}}
	if m.Scope != ScopeBase {
		return b, fmt.Errorf("backup %s is of a %s: it is no base backup", m.ID, m.Scope)
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
