package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"

	"filippo.io/age"
)

// Chunk opens the plain bytes of a chunk. They are verified while they are read: the last Read
// returns io.EOF only if all bytes match the manifest; otherwise it returns a [*ChunkError], or
// the error of ctx or the storage. The caller must undo what it did with the bytes before such
// an error, by a rollback for example.
func (r *Reader) Chunk(ctx context.Context, path string) (io.ReadCloser, error) {
	c, ok := r.byPath[path]
	if !ok {
		return nil, fmt.Errorf("open chunk %s of backup %s: %w", path, r.manifest.ID, ErrNotExist)
	}
	return r.open(ctx, c)
}

// Stored opens the stored bytes of a chunk, still compressed and encrypted, and verifies them
// as Chunk does.
func (r *Reader) Stored(ctx context.Context, path string) (io.ReadCloser, error) {
	c, ok := r.byPath[path]
	if !ok {
		return nil, fmt.Errorf("open chunk %s of backup %s: %w", path, r.manifest.ID, ErrNotExist)
	}
	return r.openStored(ctx, c)
}

// openStored returns a reader that returns io.EOF only if all bytes match the manifest.
func (r *Reader) openStored(ctx context.Context, c *Chunk) (io.ReadCloser, error) {
	s, err := r.storedOf(ctx, c)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (r *Reader) storedOf(ctx context.Context, c *Chunk) (*storedReader, error) {
	in, err := r.object(ctx, c)
	if errors.Is(err, ErrNotExist) {
		return nil, &ChunkError{Path: c.Path, File: c.File, Fault: ErrMissing, Err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("open chunk %s: %w", c.Path, err)
	}
	return &storedReader{r: r, c: c, in: in, ctx: ctx, hash: sha256.New()}, nil
}

// object opens the object of a chunk; the segments into which a stream cut it are joined.
func (r *Reader) object(ctx context.Context, c *Chunk) (io.ReadCloser, error) {
	if c.Segments <= 1 {
		return r.storage.Open(ctx, r.dir+c.File, 0)
	}
	in, err := r.storage.Open(ctx, r.dir+segmentName(c.File, 1), 0)
	if err != nil {
		return nil, err
	}
	return &joinedReader{ctx: ctx, r: r, c: c, in: in, n: 1}, nil
}

// joinedReader reads the segments of a chunk one after another.
type joinedReader struct {
	ctx context.Context
	r   *Reader
	c   *Chunk
	in  io.ReadCloser
	n   int
}

func (j *joinedReader) Read(p []byte) (int, error) {
	for {
		n, err := j.in.Read(p)
		if n > 0 || !errors.Is(err, io.EOF) {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return n, err
		}
		if j.n == j.c.Segments {
			return 0, io.EOF
		}
		if err := j.in.Close(); err != nil {
			return 0, err
		}
		j.n++
		next, err := j.r.storage.Open(j.ctx, j.r.dir+segmentName(j.c.File, j.n), 0)
		if err != nil {
			j.in = io.NopCloser(eof{})
			return 0, err
		}
		j.in = next
	}
}

func (j *joinedReader) Close() error { return j.in.Close() }

type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

// storedReader counts and hashes stored bytes, and compares both with the manifest at the end.
type storedReader struct {
	r    *Reader
	c    *Chunk
	ctx  context.Context
	in   io.ReadCloser
	hash hash.Hash
	n    int64
	err  error // the final error; io.EOF if all bytes match
}

func (s *storedReader) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	if s.ctx.Err() != nil {
		s.err = context.Cause(s.ctx)
		return 0, s.err
	}
	n, err := s.in.Read(p)
	s.hash.Write(p[:n])
	s.n += int64(n)
	switch {
	case s.n > s.c.StoredBytes:
		s.err = s.excess()
	case errors.Is(err, io.EOF):
		s.err = io.EOF
		if bad := s.compare(); bad != nil {
			s.err = bad
		}
	case errors.Is(err, ErrNotExist): // a segment
		s.err = &ChunkError{Path: s.c.Path, File: s.c.File, Fault: ErrMissing, Err: err}
	case err != nil:
		s.err = fmt.Errorf("read chunk %s: %w", s.c.Path, err)
	}
	if s.err != nil && !errors.Is(s.err, io.EOF) {
		return 0, s.err
	}
	return n, s.err
}

// excess reads past the expected end of a chunk, up to the length of the longest chunk: another
// chunk may be in its place.
func (s *storedReader) excess() error {
	n, err := io.CopyBuffer(s.hash, io.LimitReader(onlyReader{s.in}, s.r.longest-s.n+1), make([]byte, 64<<10))
	s.n += n
	if err != nil {
		return fmt.Errorf("read chunk %s: %w", s.c.Path, err)
	}
	return s.compare()
}

// compare returns what is wrong with the bytes that were read, or nil.
func (s *storedReader) compare() *ChunkError {
	e := &ChunkError{Path: s.c.Path, File: s.c.File}
	got := hex.EncodeToString(s.hash.Sum(nil))
	if got == s.c.StoredSHA256 && s.n == s.c.StoredBytes {
		return nil
	}
	if other, known := s.r.bySum[got]; known && s.n > 0 && other != s.c.Path {
		e.Fault, e.Expected, e.Got = ErrSwapped, "SHA-256 "+s.c.StoredSHA256, got+", which is that of chunk "+other
		return e
	}
	if s.n < s.c.StoredBytes {
		e.Fault, e.Expected, e.Got = ErrTruncated, count(s.c.StoredBytes), count(s.n)
		return e
	}
	e.Fault, e.Expected, e.Got = ErrCorrupt, "SHA-256 "+s.c.StoredSHA256, got
	if s.n > s.c.StoredBytes {
		e.Expected, e.Got = count(s.c.StoredBytes), "more"
	}
	return e
}

func count(n int64) string { return strconv.FormatInt(n, 10) + " bytes" }

// drain reads the rest, so that the hash shows whether the stored bytes caused an error of a
// later stage.
func (s *storedReader) drain() error {
	_, err := io.CopyBuffer(io.Discard, onlyReader{s}, make([]byte, 64<<10))
	return err
}

func (s *storedReader) Close() error { return s.in.Close() }

// open returns the plain bytes of a chunk.
func (r *Reader) open(ctx context.Context, c *Chunk) (io.ReadCloser, error) {
	stored, err := r.storedOf(ctx, c)
	if err != nil {
		return nil, err
	}
	p := &plainReader{c: c, stored: stored, sum: c.PlainSum()}
	if err := p.assemble(r); err != nil {
		return nil, errors.Join(p.blame(err), stored.Close())
	}
	return p, nil
}

// plainReader decrypts, decompresses and compares.
type plainReader struct {
	c       *Chunk
	stored  *storedReader
	decoder io.ReadCloser
	sum     *PlainSum // nil if the manifest has none
	n       int64
	err     error
}

// assemble builds the stages.
func (p *plainReader) assemble(r *Reader) error {
	var in io.Reader = p.stored
	if r.manifest.Encryption != nil {
		if r.keys == nil {
			return &ChunkError{Path: p.c.Path, File: p.c.File, Fault: ErrWrongKey, Err: ErrNoKey}
		}
		var err error
		if in, err = age.Decrypt(in, r.keys.identities...); err != nil {
			return wrongKey(err)
		}
	}
	var err error
	p.decoder, err = NewDecoder(in, p.c.Codec)
	return err
}

// blame returns an error that names the chunk. If the stored bytes do not match, that is the
// fault, and not what decryption or decompression reported.
func (p *plainReader) blame(err error) error {
	var bad *ChunkError
	if errors.As(err, &bad) {
		return bad
	}
	if end := p.stored.drain(); end != nil {
		return end
	}
	if errors.Is(err, ErrWrongKey) {
		return &ChunkError{Path: p.c.Path, File: p.c.File, Fault: ErrWrongKey, Err: err}
	}
	return &ChunkError{Path: p.c.Path, File: p.c.File, Fault: ErrCorrupt, Err: err}
}

func (p *plainReader) Read(b []byte) (int, error) {
	if p.err != nil {
		return 0, p.err
	}
	n, err := p.decoder.Read(b)
	p.n += int64(n)
	if p.sum != nil {
		_, _ = p.sum.Write(b[:n]) // never fails
	}
	switch {
	case p.n > p.c.PlainBytes:
		p.err = p.blame(fmt.Errorf("expected %s of plain text, got more", count(p.c.PlainBytes)))
	case errors.Is(err, io.EOF):
		p.err = p.end()
	case err != nil:
		p.err = p.blame(err)
	}
	if p.err != nil && !errors.Is(p.err, io.EOF) {
		return 0, p.err
	}
	return n, p.err
}

// end compares the plain bytes at their end. It also reads the stored bytes to their end: a
// decoder may stop earlier, and what follows would not be checked.
func (p *plainReader) end() error {
	if err := p.stored.drain(); err != nil {
		return err
	}
	if p.n != p.c.PlainBytes {
		return p.differs(count(p.c.PlainBytes), count(p.n))
	}
	if p.sum != nil && !p.sum.Same() {
		return p.differs(p.sum.name+" "+p.sum.want, p.sum.got())
	}
	return io.EOF
}

// differs returns the error for plain bytes that do not match although the stored ones do.
func (p *plainReader) differs(expected, got string) error {
	return &ChunkError{
		Path: p.c.Path, File: p.c.File, Fault: ErrCorrupt,
		Expected: expected, Got: got, Err: errors.New("of the plain bytes"),
	}
}

func (p *plainReader) Close() error {
	return errors.Join(p.decoder.Close(), p.stored.Close())
}
