package archive

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

const (
	// s3PartBytes is the part size of multipart uploads. S3 allows 10,000 parts, so a chunk may
	// have 80 GB as stored; the query parameter part-size raises that.
	s3PartBytes = 8 << 20
	s3MinPart   = 5 << 20 // the least size that S3 accepts, except for the last part
	s3MaxParts  = 10000

	// s3InFlight is how many parts, of all objects together, are uploaded at once. It bounds
	// the memory, together with one part for each open chunk.
	s3InFlight = 4

	// s3Retries is how often the client attempts a request; the pauses grow from 0.2 s to 1 s,
	// with jitter. [S3.repeat] starts over if that may help.
	s3Retries = 8

	// s3Patience is how long a connection may make no progress, neither delivering an awaited
	// byte nor accepting one: without it, a server or a proxy that hangs in the middle of an
	// object would hang the backup or the restore.
	s3Patience = 2 * time.Minute
)

// S3 is a [Storage] in a bucket of Amazon S3 or a compatible server. Every request carries the
// signed SHA-256 of its body and its CRC-32C; if the server does not confirm the CRC-32C, the
// object is read back and compared.
type S3 struct {
	core     minio.Core
	bucket   string
	prefix   string // "" or with a trailing slash
	place    string
	part     int
	insist   time.Duration // for how long a request is repeated
	reporter *reporter

	reached  bool // it has answered once: names and addresses are right
	inFlight chan struct{}

	mu      sync.Mutex
	buffers [][]byte // of parts, for reuse
}

// s3Config is the configuration from a location and the environment.
type s3Config struct {
	bucket, prefix, region string
	endpoint               *url.URL
	pathStyle              bool
	part                   int
	creds                  *credentials.Credentials
	patience               time.Duration
	retries                int
	insist                 time.Duration
}

// parseS3 parses s3://bucket/prefix?endpoint=URL&region=NAME&part-size=BYTES.
func parseS3(location string, env func(string) string) (s3Config, error) {
	u, err := url.Parse(location)
	if err != nil || u.Host == "" || u.User != nil {
		return s3Config{}, fmt.Errorf("read location %q: want s3://bucket/prefix?endpoint=URL&region=NAME, and credentials in the environment", redact(location))
	}
	c := s3Config{bucket: u.Host, prefix: strings.Trim(path.Clean("/"+u.Path), "/"), part: s3PartBytes, patience: s3Patience, retries: s3Retries, insist: s3Repeat}
	if c.prefix != "" {
		c.prefix += "/"
	}
	q := u.Query()
	for name, values := range q {
		switch name {
		case "endpoint", "region":
		case "part-size":
			if c.part, err = strconv.Atoi(values[0]); err != nil || c.part < s3MinPart || c.part > 1<<30 {
				return s3Config{}, fmt.Errorf("read location: part-size %q: a number of bytes from %d to %d", values[0], s3MinPart, 1<<30)
			}
		default:
			return s3Config{}, fmt.Errorf("read location: parameter %q is unknown; endpoint, region and part-size are known", name)
		}
	}
	c.region = cmp.Or(q.Get("region"), env("AWS_REGION"), env("AWS_DEFAULT_REGION"), "us-east-1")
	endpoint := cmp.Or(q.Get("endpoint"), env("AWS_ENDPOINT_URL_S3"), env("AWS_ENDPOINT_URL"))
	amazon := endpoint == ""
	if amazon {
		endpoint = "https://s3." + c.region + ".amazonaws.com"
	}
	if c.endpoint, err = url.Parse(endpoint); err != nil || c.endpoint.Host == "" || c.endpoint.Scheme != "http" && c.endpoint.Scheme != "https" {
		return s3Config{}, fmt.Errorf("read location: endpoint %q: want http://host:port or https://host", endpoint)
	}
	c.pathStyle = !amazon && !strings.HasSuffix(c.endpoint.Hostname(), ".amazonaws.com")
	c.creds = s3Credentials(env, amazon)
	return c, nil
}

// redact removes what may be a password from a location that cannot be parsed.
func redact(location string) string {
	if scheme, rest, ok := strings.Cut(location, "://"); ok {
		if at := strings.LastIndexByte(rest, '@'); at >= 0 {
			return scheme + "://***@" + rest[at+1:]
		}
	}
	return location
}

// s3Credentials finds credentials as AWS's tools do: in the environment, in files and, on
// Amazon's machines, in their metadata service.
func s3Credentials(env func(string) string, amazon bool) *credentials.Credentials {
	if id, secret := env("AWS_ACCESS_KEY_ID"), env("AWS_SECRET_ACCESS_KEY"); id != "" && secret != "" {
		return credentials.NewStaticV4(id, secret, env("AWS_SESSION_TOKEN"))
	}
	chain := []credentials.Provider{
		&credentials.FileAWSCredentials{Filename: env("AWS_SHARED_CREDENTIALS_FILE"), Profile: env("AWS_PROFILE")},
	}
	if amazon {
		chain = append(chain, &credentials.IAM{})
	}
	return credentials.NewChainCredentials(chain)
}

// openS3 opens a bucket and sends one request, so that wrong names, keys and clocks are
// reported before anything is written.
func openS3(ctx context.Context, location string, env func(string) string) (*S3, error) {
	c, err := parseS3(location, env)
	if err != nil {
		return nil, err
	}
	return c.open(ctx)
}

func (c s3Config) open(ctx context.Context) (*S3, error) {
	lookup := minio.BucketLookupDNS
	if c.pathStyle {
		lookup = minio.BucketLookupPath
	}
	place := "s3://" + c.bucket + "/" + strings.TrimSuffix(c.prefix, "/")
	secure := c.endpoint.Scheme == "https"
	transport, err := minio.DefaultTransport(secure)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", place, err)
	}
	transport.DialContext = dialIdleTimeout(transport.DialContext, c.patience)
	reporter := newReporter(ctx)
	core, err := minio.NewCore(c.endpoint.Host, &minio.Options{
		Creds: c.creds, Secure: secure, Transport: &throttle{next: transport, place: place, reporter: reporter}, Region: c.region, BucketLookup: lookup, MaxRetries: c.retries,
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", place, err)
	}
	s := &S3{
		core: *core, bucket: c.bucket, prefix: c.prefix, part: c.part, place: place,
		insist: c.insist, reporter: reporter, inFlight: make(chan struct{}, s3InFlight),
	}
	for _, err := range s.list(ctx, minio.ListObjectsOptions{Prefix: s.prefix, MaxKeys: 1}) {
		if err != nil {
			return nil, s.fail("open", "", err)
		}
		break
	}
	s.reached = true
	return s, nil
}

// String returns the location: bucket and prefix.
func (s *S3) String() string { return s.place }

func (s *S3) key(name string) string { return s.prefix + name }

// Open implements [Storage]. An interrupted download continues where it was.
func (s *S3) Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	r := &s3Reader{s: s, ctx: ctx, name: name, offset: offset}
	if err := r.connect(); err != nil {
		return nil, s.fail("open", name, err)
	}
	return r, nil
}

// s3Reader reads an object and reconnects if the connection breaks.
type s3Reader struct {
	s      *S3
	ctx    context.Context
	name   string
	offset int64
	etag   string // the object must stay the same
	body   io.ReadCloser
	broken int // consecutive connections that delivered nothing
}

func (r *s3Reader) connect() error {
	var opts minio.GetObjectOptions
	if r.offset > 0 {
		if err := opts.SetRange(r.offset, 0); err != nil {
			return err
		}
	}
	if r.etag != "" {
		if err := opts.SetMatchETag(r.etag); err != nil {
			return err
		}
	}
	var body io.ReadCloser
	var info minio.ObjectInfo
	var header http.Header
	err := r.s.repeat(r.ctx, func() (err error) {
		body, info, header, err = r.s.core.GetObject(r.ctx, r.s.bucket, r.s.key(r.name), opts)
		return err
	})
	if minio.ToErrorResponse(err).StatusCode == http.StatusRequestedRangeNotSatisfiable {
		r.body = io.NopCloser(eof{}) // at the very end
		return nil
	}
	if err != nil {
		return err
	}
	if got := header.Get("Content-Range"); r.offset > 0 && !strings.HasPrefix(got, fmt.Sprintf("bytes %d-", r.offset)) {
		return errors.Join(fmt.Errorf("the server ignores ranges: asked for the bytes from %d on, it sends %q", r.offset, got), body.Close())
	}
	r.body, r.etag = body, cmp.Or(r.etag, info.ETag)
	return nil
}

var errCut = errors.New("connections end before the object does")

func (r *s3Reader) Read(p []byte) (int, error) {
	for {
		n, err := r.body.Read(p)
		r.offset += int64(n)
		if n > 0 {
			r.broken = 0
		}
		if err == nil || errors.Is(err, io.EOF) {
			return n, err
		}
		r.broken++
		if r.ctx.Err() != nil || r.broken > s3Retries {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				err = errCut // the object is not the cause
			}
			return n, r.s.fail("read", r.name, err)
		}
		// The connection is broken: an error of Close adds nothing.
		_ = r.body.Close()
		if err := r.connect(); err != nil {
			r.body = io.NopCloser(eof{})
			return n, r.s.fail("read", r.name, err)
		}
		if n > 0 {
			return n, nil
		}
	}
}

func (r *s3Reader) Close() error { return r.body.Close() }

// Stat implements [Storage].
func (s *S3) Stat(ctx context.Context, name string) (ObjectInfo, error) {
	var info minio.ObjectInfo
	err := s.repeat(ctx, func() (err error) {
		info, err = s.core.StatObject(ctx, s.bucket, s.key(name), minio.StatObjectOptions{})
		return err
	})
	if err != nil {
		return ObjectInfo{}, s.fail("look at", name, err)
	}
	return ObjectInfo{Name: name, Size: info.Size, Modified: info.LastModified}, nil
}

// List implements [Storage], in the order of keys.
func (s *S3) List(ctx context.Context, dir string, deep bool) iter.Seq2[ObjectInfo, error] {
	if dir != "" && !strings.HasSuffix(dir, "/") {
		dir += "/"
	}
	return func(yield func(ObjectInfo, error) bool) {
		for o, err := range s.list(ctx, minio.ListObjectsOptions{Prefix: s.key(dir), Recursive: deep}) {
			if err != nil {
				yield(ObjectInfo{}, s.fail("list", dir, err))
				return
			}
			info := ObjectInfo{Name: strings.TrimPrefix(o.Key, s.prefix), Size: o.Size, Modified: o.LastModified}
			if strings.HasSuffix(o.Key, "/") {
				if deep || info.Name == dir {
					continue // a marker that some tools create for a directory
				}
				info = ObjectInfo{Name: info.Name}
			}
			if !yield(info, nil) {
				return
			}
		}
	}
}

// list lists objects. If a response breaks off, it starts over and skips what it has yielded
// already.
func (s *S3) list(ctx context.Context, opts minio.ListObjectsOptions) iter.Seq2[minio.ObjectInfo, error] {
	return func(yield func(minio.ObjectInfo, error) bool) {
		told := map[string]bool{}
		for {
			before := len(told)
			err := s.repeat(ctx, func() error {
				return s.listOnce(ctx, opts, func(o minio.ObjectInfo) bool {
					if told[o.Key] {
						return true
					}
					told[o.Key] = true
					return yield(o, nil)
				})
			})
			switch {
			case err == nil:
				return
			case ctx.Err() != nil:
				yield(minio.ObjectInfo{}, context.Cause(ctx))
				return
			case !cut(err), len(told) == before:
				yield(minio.ObjectInfo{}, err)
				return
			}
		}
	}
}

// listOnce yields objects until yield returns false, which is no error.
func (s *S3) listOnce(ctx context.Context, opts minio.ListObjectsOptions, yield func(minio.ObjectInfo) bool) error {
	listing, cancel := context.WithCancel(ctx)
	defer cancel()
	for o := range s.core.ListObjectsIter(listing, s.bucket, opts) {
		if o.Err != nil {
			return o.Err
		}
		if !yield(o) {
			return nil
		}
	}
	return context.Cause(ctx)
}

// Put implements [Storage].
func (s *S3) Put(ctx context.Context, name string, data []byte) error {
	return s.put(ctx, name, data, minio.PutObjectOptions{})
}

// put uploads an object in one request, and makes sure that the server has the same bytes.
func (s *S3) put(ctx context.Context, name string, data []byte, opts minio.PutObjectOptions) error {
	sum := crc32.Checksum(data, castagnoli)
	opts.DisableContentSha256 = true // no streaming signature: the hash of the body is signed
	opts.UserMetadata = map[string]string{"X-Amz-Checksum-Crc32c": crcHeader(sum)}
	var info minio.UploadInfo
	err := s.repeat(ctx, func() (err error) {
		info, err = s.core.PutObject(ctx, s.bucket, s.key(name), bytes.NewReader(data), int64(len(data)), "", sha256Hex(data), opts)
		return err
	})
	if err != nil {
		return s.fail("upload", name, err)
	}
	if info.ChecksumCRC32C == crcHeader(sum) {
		return nil
	}
	return s.compare(ctx, name, int64(len(data)), sum)
}

// crcHeader formats a CRC-32C as S3 does.
func crcHeader(sum uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))
}

// compare reads an object back and compares it.
func (s *S3) compare(ctx context.Context, name string, size int64, sum uint32) error {
	in, err := s.Open(ctx, name, 0)
	if err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	hash := crc32.New(castagnoli)
	n, err := io.Copy(hash, in)
	if err := errors.Join(err, in.Close()); err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	if n != size || hash.Sum32() != sum {
		return &Error{
			Op: "upload", Place: s.place + "/" + name,
			Err: fmt.Errorf("%w: %d bytes with CRC-32C %08x were sent, the server has %d with %08x", ErrCorrupt, size, sum, n, hash.Sum32()),
		}
	}
	return nil
}

// PutNew implements [Storage] with If-None-Match. If the server does not support that, weir
// first asks whether the name is taken; then two writers can both succeed.
func (s *S3) PutNew(ctx context.Context, name string, data []byte) error {
	var opts minio.PutObjectOptions
	opts.SetMatchETagExcept("*")
	err := s.put(ctx, name, data, opts)
	if errors.Is(err, ErrExist) {
		// The response to a successful attempt may have been lost; the next attempt then found
		// its own object.
		there, readErr := readAll(ctx, s, name, int64(len(data)))
		switch {
		case readErr == nil && bytes.Equal(there, data):
			return nil
		case errors.As(readErr, new(*Error)) && !errors.Is(readErr, ErrNotExist):
			return readErr // it is unknown whose object it is
		}
		return err
	}
	var answer minio.ErrorResponse
	if !errors.As(err, &answer) || answer.StatusCode != http.StatusNotImplemented {
		return err
	}
	if _, err := s.Stat(ctx, name); !errors.Is(err, ErrNotExist) {
		if err == nil {
			err = &Error{Op: "upload", Place: s.place + "/" + name, Err: ErrExist}
		}
		return err
	}
	return s.Put(ctx, name, data)
}

// Delete implements [Storage].
func (s *S3) Delete(ctx context.Context, names ...string) error {
	return s.repeat(ctx, func() error {
		if len(names) == 1 {
			err := s.core.RemoveObject(ctx, s.bucket, s.key(names[0]), minio.RemoveObjectOptions{})
			if err = s.fail("delete", names[0], err); errors.Is(err, ErrNotExist) {
				return nil
			}
			return err
		}
		return s.deleteMany(ctx, names)
	})
}

func (s *S3) deleteMany(ctx context.Context, names []string) error {
	objects := make(chan minio.ObjectInfo)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer close(objects)
		for _, name := range names {
			select {
			case objects <- minio.ObjectInfo{Key: s.key(name)}:
			case <-ctx.Done():
				return
			}
		}
	}()
	var errs []error
	for r := range s.core.RemoveObjects(ctx, s.bucket, objects, minio.RemoveObjectsOptions{}) {
		err := s.fail("delete", strings.TrimPrefix(r.ObjectName, s.prefix), r.Err)
		if err != nil && !errors.Is(err, ErrNotExist) && len(errs) < 3 {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, context.Cause(ctx))...)
}

// Clean implements [Storage]: it aborts uploads that were begun before the given time and not
// completed. They cost money and appear in no list.
func (s *S3) Clean(ctx context.Context, dir string, before time.Time) (removed int, err error) {
	if dir != "" && !strings.HasSuffix(dir, "/") {
		dir += "/"
	}
	err = s.repeat(ctx, func() error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		for u := range s.core.ListIncompleteUploads(ctx, s.bucket, s.key(dir), true) {
			if u.Err != nil {
				return s.fail("list unfinished uploads of", dir, u.Err)
			}
			if !u.Initiated.Before(before) {
				continue
			}
			err := s.core.AbortMultipartUpload(ctx, s.bucket, u.Key, u.UploadID)
			if err = s.fail("give up upload of", u.Key, err); err != nil && !errors.Is(err, ErrNotExist) {
				return err
			}
			removed++
		}
		return nil
	})
	return removed, err
}

// fail returns an [*Error] with a hint for the operator; nil if err is nil.
func (s *S3) fail(op, name string, err error) error {
	if err == nil {
		return nil
	}
	e := &Error{Op: op, Place: strings.TrimSuffix(s.place+"/"+name, "/"), Err: err}
	var answer minio.ErrorResponse
	var network interface{ Timeout() bool }
	switch {
	case errors.As(err, &answer):
		e.explain(answer)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	case errors.As(err, &network):
		e.Hint = "check the endpoint and the network"
	}
	return e
}

// explain adds what an S3 error code means to an operator.
func (e *Error) explain(answer minio.ErrorResponse) {
	kind := func(k error, hint string) { e.Err, e.Hint = kindError{k, e.Err}, hint }
	code := strings.ToLower(answer.Code)
	if answer.StatusCode == http.StatusInsufficientStorage {
		code = "quotaexceeded"
	}
	switch code { // servers differ in the case of "Id"
	case "nosuchkey", "notfound", "nosuchupload":
		kind(ErrNotExist, "")
	case "nosuchbucket":
		kind(ErrNotExist, "create the bucket "+answer.BucketName+" first, or correct its name")
	case "preconditionfailed", "conditionalrequestconflict":
		kind(ErrExist, "")
	case "invalidaccesskeyid", "signaturedoesnotmatch", "invalidtoken", "expiredtoken", "xadminusernotfound": // the last is versitygw's
		kind(ErrDenied, "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile in ~/.aws/credentials")
	case "accessdenied", "forbidden", "allaccessdisabled":
		kind(ErrDenied, "the credentials are missing or lack the right to do this: reading, writing, listing and deleting are needed")
	case "requesttimetooskewed", "requestexpired":
		kind(ErrDenied, "this machine's clock differs too much from the server's: set it, by NTP for example")
	case "quotaexceeded", "xminiostoragefull", "insufficientcapacity", "entitytoolargeforquota":
		kind(ErrFull, "make room")
	case "authorizationheadermalformed", "permanentredirect", "incorrectendpoint":
		e.Hint = "the bucket is in another region: add ?region=" + cmp.Or(answer.Region, "NAME")
	case "slowdown", "slowdownread", "slowdownwrite", "throttling", "throttlingexception", "requestlimitexceeded", "requestthrottled", "toomanyrequests":
		e.Hint = "the server asked to slow down for longer than weir waits: use fewer --jobs or --rate-limit, and look who else uses the bucket"
	}
}
