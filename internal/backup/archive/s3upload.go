package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
)

// s3Writer uploads an object in parts. One part is being filled while others are being
// uploaded:
//
//	Write -> [part] -> at most s3InFlight uploads of the whole storage -> S3
//
// An object that fits into one part is sent in one request. A part whose request was
// interrupted is sent again from memory (s3Retries).
type s3Writer struct {
	s    *S3
	ctx  context.Context
	stop context.CancelCauseFunc
	name string

	buf    []byte
	size   int64
	sum    uint32 // CRC-32C of all bytes
	upload string // id of the multipart upload; "" before it begins
	parts  int

	sending sync.WaitGroup
	mu      sync.Mutex
	done    []minio.CompletePart
	echoed  bool // the server confirmed the checksum of each part so far
	ended   bool
}

// Create implements [Storage].
func (s *S3) Create(ctx context.Context, name string) (ObjectWriter, error) {
	w := &s3Writer{s: s, name: name, echoed: true}
	w.ctx, w.stop = context.WithCancelCause(ctx)
	return w, nil
}

func (w *s3Writer) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		if len(w.buf) == w.s.part {
			if err := w.send(); err != nil {
				return len(p) - len(rest), err
			}
		}
		if w.buf == nil {
			w.buf = w.s.buffer()
		}
		n := min(len(rest), w.s.part-len(w.buf))
		w.buf = append(w.buf, rest[:n]...)
		w.sum = crc32.Update(w.sum, castagnoli, rest[:n])
		w.size += int64(n)
		rest = rest[n:]
	}
	return len(p), nil
}

// buffer returns an empty buffer, which grows as it is filled: small objects never need all of
// a part.
func (s *S3) buffer() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.buffers); n > 0 {
		b := s.buffers[n-1]
		s.buffers = s.buffers[:n-1]
		return b
	}
	return make([]byte, 0, 64<<10)
}

func (s *S3) recycle(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.buffers) < 2*s3InFlight {
		s.buffers = append(s.buffers, b[:0])
	}
}

// send starts the upload of the filled part. It waits while s3InFlight parts are being
// uploaded.
func (w *s3Writer) send() error {
	if w.parts == s3MaxParts {
		return &Error{
			Op: "upload", Place: w.s.place + "/" + w.name,
			Err:  fmt.Errorf("more than %d parts of %d bytes", s3MaxParts, w.s.part),
			Hint: "add ?part-size=67108864 to the location, or smaller chunks",
		}
	}
	if w.upload == "" {
		opts := minio.PutObjectOptions{UserMetadata: map[string]string{"X-Amz-Checksum-Algorithm": "CRC32C"}}
		err := w.s.repeat(w.ctx, func() (err error) {
			w.upload, err = w.s.core.NewMultipartUpload(w.ctx, w.s.bucket, w.s.key(w.name), opts)
			return err
		})
		if err != nil {
			return w.s.fail("begin upload of", w.name, err)
		}
	}
	select {
	case w.s.inFlight <- struct{}{}:
	case <-w.ctx.Done():
		return context.Cause(w.ctx)
	}
	w.parts++
	number, data := w.parts, w.buf
	w.buf = nil
	w.sending.Go(func() {
		defer func() { <-w.s.inFlight }()
		if err := w.sendPart(number, data); err != nil {
			w.stop(err)
			return
		}
		w.s.recycle(data)
	})
	return nil
}

func (w *s3Writer) sendPart(number int, data []byte) error {
	sum, hash := crcHeader(crc32.Checksum(data, castagnoli)), sha256Hex(data)
	var part minio.ObjectPart
	err := w.s.repeat(w.ctx, func() (err error) {
		part, err = w.s.core.PutObjectPart(w.ctx, w.s.bucket, w.s.key(w.name), w.upload, number, bytes.NewReader(data), int64(len(data)),
			minio.PutObjectPartOptions{
				Sha256Hex: hash, DisableContentSha256: true,
				CustomHeader: http.Header{"X-Amz-Checksum-Crc32c": {sum}},
			})
		return err
	})
	if err != nil {
		return w.s.fail(fmt.Sprintf("upload part %d of", number), w.name, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.echoed = w.echoed && part.ChecksumCRC32C == sum
	w.done = append(w.done, minio.CompletePart{PartNumber: number, ETag: part.ETag, ChecksumCRC32C: sum})
	return nil
}

// Commit completes the upload and makes sure that the server has what was written: its length,
// and its CRC-32C, either part by part or by reading it back.
func (w *s3Writer) Commit() (ObjectInfo, error) {
	if w.upload == "" {
		w.ended = true
		defer w.stop(nil)
		if err := w.s.Put(w.ctx, w.name, w.buf); err != nil {
			return ObjectInfo{}, err
		}
		w.s.recycle(w.buf)
		w.buf = nil
		return ObjectInfo{Name: w.name, Size: w.size}, nil
	}
	if err := w.complete(); err != nil {
		return ObjectInfo{}, errors.Join(err, w.Abort())
	}
	w.ended = true
	defer w.stop(nil)
	info, err := w.s.Stat(w.ctx, w.name)
	if err == nil && (info.Size != w.size || !w.echoed) {
		err = w.s.compare(w.ctx, w.name, w.size, w.sum)
	}
	if err != nil && w.ctx.Err() == nil {
		err = errors.Join(err, w.s.Delete(w.ctx, w.name))
	} // otherwise the object may be another run's: a backup that has lost its lock cancels the context
	if err != nil {
		return ObjectInfo{}, err
	}
	return info, nil
}

func (w *s3Writer) complete() error {
	if len(w.buf) > 0 {
		if err := w.send(); err != nil {
			return err
		}
	}
	w.sending.Wait()
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	parts := make([]minio.CompletePart, len(w.done))
	for _, p := range w.done {
		parts[p.PartNumber-1] = p
	}
	err := w.s.repeat(w.ctx, func() error {
		_, err := w.s.core.CompleteMultipartUpload(w.ctx, w.s.bucket, w.s.key(w.name), w.upload, parts, minio.PutObjectOptions{})
		if err != nil && w.there() {
			return nil // the response was lost, or the request was repeated: the first one has completed the upload
		}
		return err
	})
	return w.s.fail("complete upload of", w.name, err)
}

// there reports whether the bucket has the object as it was written. Since an older object may
// have the same length, all of it is compared, within s3Repeat in total: the upload has waited
// long enough already.
func (w *s3Writer) there() bool {
	ctx, cancel := context.WithTimeout(w.ctx, s3Repeat)
	defer cancel()
	info, err := w.s.Stat(ctx, w.name)
	return err == nil && info.Size == w.size && w.s.compare(ctx, w.name, w.size, w.sum) == nil
}

// Abort aborts the upload. The context of the object has often ended by then.
func (w *s3Writer) Abort() error {
	if w.ended {
		return nil
	}
	w.ended = true
	w.stop(errAborted)
	w.sending.Wait()
	if w.upload == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), time.Minute)
	defer cancel()
	err := w.s.repeat(ctx, func() error {
		return w.s.core.AbortMultipartUpload(ctx, w.s.bucket, w.s.key(w.name), w.upload)
	})
	if err = w.s.fail("give up upload of", w.name, err); errors.Is(err, ErrNotExist) {
		return nil
	}
	return err
}
