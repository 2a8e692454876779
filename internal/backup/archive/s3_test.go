package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// s3Env returns environment variables with the server's credentials.
func s3Env(server *lab.S3, change ...string) func(string) string {
	vars := map[string]string{"AWS_SHARED_CREDENTIALS_FILE": "/nonexistent"}
	for _, v := range append(server.Environ(), change...) {
		name, value, _ := strings.Cut(v, "=")
		vars[name] = value
	}
	return func(name string) string { return vars[name] }
}

// s3Location returns the location of a new prefix in the server's bucket, through the proxy at
// endpoint if one is given.
func s3Location(t *testing.T, server *lab.S3, endpoint string) string {
	u, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	u.Path = fmt.Sprintf("/%s/%d", t.Name(), time.Now().UnixNano())
	q := u.Query()
	q.Set("part-size", fmt.Sprint(s3MinPart))
	if endpoint != "" {
		q.Set("endpoint", endpoint)
	}
	u.RawQuery = q.Encode()
	return u.String()
}

func openTestS3(t *testing.T, endpoint string) *S3 {
	t.Helper()
	server := labtest.SharedS3(t)
	s, err := openS3(t.Context(), s3Location(t, server, endpoint), s3Env(server))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// s3Proxy starts a proxy before the lab's server, in which meddle may change requests and answer
// may change answers.
func s3Proxy(t *testing.T, meddle func(next http.Handler) http.Handler, answer func(*http.Response) error) string {
	t.Helper()
	target, err := url.Parse(labtest.SharedS3(t).Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Host = r.In.Host },
		ModifyResponse: answer,
		ErrorLog:       log.New(io.Discard, "", 0),
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	var h http.Handler = proxy
	if meddle != nil {
		h = meddle(proxy)
	}
	front := httptest.NewServer(h)
	t.Cleanup(front.Close)
	return front.URL
}

func TestS3Storage(t *testing.T) {
	t.Parallel()
	testStorage(t, openTestS3(t, ""))
}

// TestS3WithoutChecksums uses a server without checksums and conditional writes: weir must read
// back what was stored.
func TestS3WithoutChecksums(t *testing.T) {
	t.Parallel()
	var conditional atomic.Int32
	endpoint := s3Proxy(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("If-None-Match") == "*" {
				conditional.Add(1)
				s3Error(w, http.StatusNotImplemented, "NotImplemented")
				return
			}
			next.ServeHTTP(w, r)
		})
	}, func(r *http.Response) error {
		r.Header.Del("X-Amz-Checksum-Crc32c")
		return nil
	})
	s := openTestS3(t, endpoint)
	t.Run("objects", func(t *testing.T) { testObjects(t, s) })
	if err := s.PutNew(t.Context(), "new", []byte("1")); err != nil {
		t.Fatal(err)
	}
	if err := s.PutNew(t.Context(), "new", []byte("2")); !errors.Is(err, ErrExist) {
		t.Errorf("a taken name: %v", err)
	}
	if conditional.Load() == 0 {
		t.Error("no conditional write was tried")
	}
}

func s3Error(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>as the test wants</Message></Error>`, code)
}

// TestS3ServerThatStoresOtherBytes changes what is read back: an upload that the server has
// confirmed, but did not store, must fail.
func TestS3ServerThatStoresOtherBytes(t *testing.T) {
	t.Parallel()
	endpoint := s3Proxy(t, nil, func(r *http.Response) error {
		r.Header.Del("X-Amz-Checksum-Crc32c")
		if r.Request.Method == http.MethodGet && strings.Contains(r.Request.URL.Path, "victim") {
			body, err := io.ReadAll(r.Body)
			if err != nil || len(body) == 0 {
				return err
			}
			body[len(body)/2] ^= 1
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		return nil
	})
	s := openTestS3(t, endpoint)
	for _, size := range []int{1000, 11 << 20} {
		w, err := s.Create(t.Context(), "victim")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(noise(3, size)); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Commit(); !errors.Is(err, ErrCorrupt) {
			t.Errorf("commit of %d bytes: %v", size, err)
		}
	}
}

// TestS3UploadThatIsCut drops the connection of every first attempt at a part,
// and every download once in its middle.
func TestS3UploadThatIsCut(t *testing.T) {
	t.Parallel()
	var cuts, cutReads atomic.Int32
	tried := map[string]bool{}
	lock := make(chan struct{}, 1)
	endpoint := s3Proxy(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			lock <- struct{}{}
			again := tried[r.Method+r.URL.String()]
			if r.Method == http.MethodPut {
				tried[r.Method+r.URL.String()] = true
			}
			<-lock
			if r.Method == http.MethodPut && !again {
				cuts.Add(1)
				_, _ = io.CopyN(io.Discard, r.Body, 4096)
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	}, func(r *http.Response) error {
		if r.Request.Method == http.MethodGet && r.ContentLength > 1<<20 {
			cutReads.Add(1)
			r.Body = &cutBody{ReadCloser: r.Body, left: 1 << 20}
		}
		return nil
	})
	s := openTestS3(t, endpoint)
	data := noise(4, 11<<20)
	putVictim(t, s, data)
	if got := readFrom(t, s, "victim", 0); !bytes.Equal(got, data) {
		t.Errorf("%d bytes came back, not the %d sent", len(got), len(data))
	}
	if cuts.Load() < 3 || cutReads.Load() < 3 {
		t.Errorf("%d uploads and %d downloads were cut, want 3 each at least", cuts.Load(), cutReads.Load())
	}
}

// putVictim stores data as the object "victim", and fails the test if that is not reported as a
// success.
func putVictim(t *testing.T, s *S3, data []byte) {
	t.Helper()
	w, err := s.Create(t.Context(), "victim")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(); err != nil {
		t.Fatal(err)
	}
}

// TestS3ConnectionThatHangs stops in the middle of the first attempts at an upload and a
// download, and leaves their connections open.
func TestS3ConnectionThatHangs(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	var puts, gets atomic.Int32
	endpoint := s3Proxy(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodPut && puts.Add(1) == 1:
				<-over
			case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/victim") && gets.Add(1) == 1:
				w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
				w.Header().Set("Content-Length", fmt.Sprint(6<<20))
				_, _ = w.Write(make([]byte, 1000))
				w.(http.Flusher).Flush()
				<-over
			default:
				next.ServeHTTP(w, r)
			}
		})
	}, nil)
	t.Cleanup(func() { close(over) }) // before the server ends
	server := labtest.SharedS3(t)
	c, err := parseS3(s3Location(t, server, endpoint), s3Env(server))
	if err != nil {
		t.Fatal(err)
	}
	c.patience = time.Second
	s, err := c.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	data := append(make([]byte, 1000), noise(4, 6<<20-1000)...)
	putVictim(t, s, data)
	if got := readFrom(t, s, "victim", 0); !bytes.Equal(got, data) {
		t.Errorf("%d bytes came back, not the %d sent", len(got), len(data))
	}
}

// TestS3DownloadThatNeverComes checks that an object whose bytes do not arrive is not mistaken
// for a short one.
func TestS3DownloadThatNeverComes(t *testing.T) {
	t.Parallel()
	s := openTestS3(t, s3Proxy(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/victim") {
				next.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
			w.Header().Set("Content-Length", "100")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		})
	}, nil))
	_, err := readAll(t.Context(), s, "victim", 100)
	var place *Error
	if !errors.As(err, &place) || errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the error is %v", err)
	}
}

// TestS3ServerWithoutRanges uses a server that ignores ranges and sends the whole object: after
// a broken connection, reading must not start again at the first byte.
func TestS3ServerWithoutRanges(t *testing.T) {
	t.Parallel()
	data := noise(4, 1<<20)
	s := openTestS3(t, s3Proxy(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/victim") {
				next.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			if r.Header.Get("Range") != "" {
				_, _ = w.Write(data)
				return
			}
			_, _ = w.Write(data[:1000])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		})
	}, nil))
	in, err := s.Open(t.Context(), "victim", 0)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(in)
	if err == nil || !strings.Contains(err.Error(), "from 1000 on") || !bytes.Equal(got, data[:1000]) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
}

// TestS3UploadWhoseAnswersAreCut cuts the first answers to requests that begin and complete an
// upload, and answers the second of the latter as S3 does when it fails late: with status 200.
func TestS3UploadWhoseAnswersAreCut(t *testing.T) {
	t.Parallel()
	var begun, ended atomic.Int32
	cut := func(w http.ResponseWriter) {
		_, _ = io.WriteString(w, "<?xml version=\"1.0\"?>\n")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	s := openTestS3(t, s3Proxy(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if q := r.URL.Query(); r.Method == http.MethodPost && q.Has("uploads") {
				if begun.Add(1) == 1 {
					cut(w)
				}
			} else if r.Method == http.MethodPost && q.Has("uploadId") {
				switch ended.Add(1) {
				case 1:
					cut(w)
				case 2:
					s3Error(w, http.StatusOK, "InternalError")
					return
				}
			}
			next.ServeHTTP(w, r)
		})
	}, nil))
	data := noise(4, 6<<20)
	putVictim(t, s, data)
	if got := readFrom(t, s, "victim", 0); !bytes.Equal(got, data) || begun.Load() != 2 || ended.Load() != 3 {
		t.Errorf("%d bytes came back, not the %d sent, after %d requests to begin and %d to end", len(got), len(data), begun.Load(), ended.Load())
	}
}

// TestS3RequestsWithoutAnswer checks that retries are not multiplied: a request without an
// answer is sent as often as the S3 client alone would send it.
func TestS3RequestsWithoutAnswer(t *testing.T) {
	t.Parallel()
	const tries = 2
	kind := func(r *http.Request) string {
		switch q := r.URL.Query(); {
		case r.Method == http.MethodGet && q.Has("list-type"):
			return "list"
		case r.Method == http.MethodPost && q.Has("uploads"):
			return "begin"
		case r.Method == http.MethodPost && q.Has("uploadId"):
			return "complete"
		}
		return r.Method
	}
	for _, silent := range []string{"list", "begin", "complete"} {
		var opened atomic.Bool
		var asked, looked atomic.Int32
		endpoint := s3Proxy(t, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Connection", "close") // a request on an old connection may be sent twice by net/http
				switch k := kind(r); {
				case opened.Load() && k == silent:
					asked.Add(1)
				case opened.Load() && k == http.MethodHead:
					looked.Add(1)
				default:
					next.ServeHTTP(w, r)
					return
				}
				panic(http.ErrAbortHandler)
			})
		}, nil)
		server := labtest.SharedS3(t)
		c, err := parseS3(s3Location(t, server, endpoint), s3Env(server))
		if err != nil {
			t.Fatal(err)
		}
		c.retries, c.insist = tries, 0
		s, err := c.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		opened.Store(true)
		if silent == "list" {
			for _, err = range s.List(t.Context(), "", true) {
			}
		} else {
			var w ObjectWriter
			if w, err = s.Create(t.Context(), "victim"); err != nil {
				t.Fatal(err)
			}
			if _, err = w.Write(make([]byte, s3MinPart+1)); err == nil {
				_, err = w.Commit()
			}
			if err := w.Abort(); err != nil {
				t.Error(err)
			}
		}
		if err == nil || asked.Load() != tries || looked.Load() > tries {
			t.Errorf("%s: %d requests and %d looks without an answer, want %d; the error is %v", silent, asked.Load(), looked.Load(), tries, err)
		}
	}
}

// TestS3NewNameThatCannotBeRead checks that weir does not report the object as another run's
// when the answer to a PutNew is lost and the object cannot be read.
func TestS3NewNameThatCannotBeRead(t *testing.T) {
	t.Parallel()
	s := openTestS3(t, s3Proxy(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Header.Get("If-None-Match") == "*":
				s3Error(w, http.StatusPreconditionFailed, "PreconditionFailed")
			case strings.HasSuffix(r.URL.Path, "/new"):
				s3Error(w, http.StatusForbidden, "RequestTimeTooSkewed")
			default:
				next.ServeHTTP(w, r)
			}
		})
	}, nil))
	if err := s.PutNew(t.Context(), "new", []byte("1")); errors.Is(err, ErrExist) || !errors.Is(err, ErrDenied) {
		t.Errorf("the error is %v", err)
	}
}

// TestS3CompletionWhoseAnswerIsLost completes uploads and drops the answer: the object exists,
// whatever the answer to a second request says.
func TestS3CompletionWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	var lost atomic.Int32
	s := openTestS3(t, s3Proxy(t, nil, func(r *http.Response) error {
		if q := r.Request.URL.Query(); r.Request.Method == http.MethodPost && q.Has("uploadId") && r.StatusCode == http.StatusOK {
			if _, err := io.Copy(io.Discard, r.Body); err != nil { // the server has done it by then
				return err
			}
			lost.Add(1)
			return errors.New("the answer is lost")
		}
		return nil
	}))
	data := noise(4, 11<<20)
	w, err := s.Create(t.Context(), "victim")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if info, err := w.Commit(); err != nil || info.Size != int64(len(data)) {
		t.Fatalf("%+v, %v", info, err)
	}
	if got := readFrom(t, s, "victim", 0); !bytes.Equal(got, data) || lost.Load() == 0 {
		t.Errorf("%d bytes came back, not the %d sent; %d answers were lost", len(got), len(data), lost.Load())
	}
}

// TestS3ObjectThatMayBeAnothers checks that a backup that loses its lock while it verifies an
// upload does not delete the object, which may be another run's.
func TestS3ObjectThatMayBeAnothers(t *testing.T) {
	t.Parallel()
	ctx, lose := context.WithCancel(t.Context())
	s := openTestS3(t, s3Proxy(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodHead && ctx.Err() == nil {
				lose()
				s3Error(w, http.StatusInternalServerError, "InternalError")
				return
			}
			next.ServeHTTP(w, r)
		})
	}, nil))
	w, err := s.Create(ctx, "victim")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(noise(5, 11<<20)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(); err == nil {
		t.Error("the upload is complete, and nobody has seen it")
	}
	if _, err := s.Stat(t.Context(), "victim"); err != nil {
		t.Errorf("the object is gone: %v", err)
	}
}

// TestS3ListingThatIsCut breaks off every other listing in its middle.
func TestS3ListingThatIsCut(t *testing.T) {
	t.Parallel()
	var listings atomic.Int32
	s := openTestS3(t, s3Proxy(t, func(next http.Handler) http.Handler { return next }, func(r *http.Response) error {
		if r.Request.Method == http.MethodGet && r.Request.URL.Query().Get("list-type") == "2" && listings.Add(1)%2 == 1 {
			r.Body = &cutBody{ReadCloser: r.Body, left: 400}
		}
		return nil
	}))
	want := ""
	for i := range 5 {
		name := fmt.Sprintf("d%d/object", i)
		if err := s.Put(t.Context(), name, []byte("x")); err != nil {
			t.Fatal(err)
		}
		want += name + " "
	}
	for range 3 {
		got := ""
		for o, err := range s.List(t.Context(), "", true) {
			if err != nil {
				t.Fatal(err)
			}
			got += o.Name + " "
		}
		if got != want {
			t.Errorf("listed %q, want %q", got, want)
		}
	}
	if listings.Load() < 6 {
		t.Errorf("%d listings, want each of three to be tried twice", listings.Load())
	}
}

// cutBody ends with an error after some bytes.
type cutBody struct {
	io.ReadCloser
	left int
}

func (c *cutBody) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, errors.New("cut")
	}
	n, err := c.ReadCloser.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

func TestS3FaultsAreNamed(t *testing.T) {
	t.Parallel()
	server := labtest.SharedS3(t)
	skewed := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s3Error(w, http.StatusForbidden, "RequestTimeTooSkewed")
	}))
	defer skewed.Close()
	location := s3Location(t, server, "")
	for _, c := range []struct {
		name, location, change string
		is                     error
		says                   string
	}{
		{"unknown key", location, "AWS_ACCESS_KEY_ID=nobody", ErrDenied, "AWS_ACCESS_KEY_ID"},
		{"wrong secret", location, "AWS_SECRET_ACCESS_KEY=wrong", ErrDenied, "AWS_SECRET_ACCESS_KEY"},
		{"no bucket", strings.Replace(location, "s3://weir/", "s3://nosuchbucket/", 1), "", ErrNotExist, "create the bucket"},
		{"clock", s3Location(t, server, skewed.URL), "", ErrDenied, "clock"},
		{"bad endpoint", "s3://weir?endpoint=ftp://x", "", nil, "endpoint"},
		{"bad parameter", "s3://weir?pathstyle=1", "", nil, "pathstyle"},
		{"bad part size", "s3://weir?part-size=5", "", nil, "part-size"},
		{"password", "s3://id:secret@weir", "", nil, "environment"},
	} {
		_, err := openS3(t.Context(), c.location, s3Env(server, c.change))
		if err == nil {
			t.Errorf("%s: opens", c.name)
			continue
		}
		if c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "secret@") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := openS3(ctx, s3Location(t, server, "http://127.0.0.1:1"), s3Env(server)); err == nil {
		t.Error("opens where nobody listens")
	}
}

// TestS3ThatIsFull says so once, even if it does not take the end of the backup's lock either.
func TestS3ThatIsFull(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	s := openTestS3(t, s3Proxy(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut && full.Load() {
				w.WriteHeader(http.StatusInsufficientStorage)
				return
			}
			next.ServeHTTP(w, r)
		})
	}, nil))
	w, err := Create(t.Context(), NewRepository(s), Options{ID: "b"})
	if err != nil {
		t.Fatal(err)
	}
	a, b := DataPath("shop", "public", "orders", 1, "copy"), DataPath("shop", "public", "orders", 2, "copy")
	if err := writeChunk(t.Context(), w, fixtureInfo(a), noise(1, 1<<10)); err != nil {
		t.Fatal(err)
	}
	full.Store(true)
	err = w.Fail(writeChunk(t.Context(), w, fixtureInfo(b), noise(2, 1<<10)))
	if !errors.Is(err, ErrFull) || strings.Count(err.Error(), "make room") != 1 {
		t.Errorf("on a full storage: %v", err)
	}
}

// TestS3BackupWithCrash abandons a backup, resumes and reads it, and removes the unfinished
// uploads.
func TestS3BackupWithCrash(t *testing.T) {
	t.Parallel()
	s := openTestS3(t, "")
	repo := NewRepository(s)
	ctx := t.Context()
	big := map[string][]byte{DataPath("shop", "public", "orders", 1, "copy"): noise(7, 11<<20)}
	for path, data := range fixture() {
		if big[path] == nil {
			big[path] = data
		}
	}
	w, err := Create(ctx, repo, Options{ID: "b", Label: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	path := DataPath("shop", "public", "orders", 2, "copy")
	if err := writeChunk(ctx, w, fixtureInfo(path), big[path]); err != nil {
		t.Fatal(err)
	}
	if err := w.Abort(true); err != nil {
		t.Fatal(err)
	}
	id, err := s.core.NewMultipartUpload(ctx, s.bucket, s.key("b/left/over"), minio.PutObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err = Create(ctx, repo, Options{ID: "b", Label: "shop", Resume: true})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(w.Resumed()); n != 1 {
		t.Errorf("%d chunks were resumed, want 1", n)
	}
	if _, err := s.core.ListObjectParts(ctx, s.bucket, s.key("b/left/over"), id, 0, 10); err == nil {
		t.Error("the unfinished upload is still there")
	}
	if _, err := writeAll(ctx, w, big, fixtureContent()); err != nil {
		t.Fatal(err)
	}
	r, err := Open(ctx, repo, Latest, ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	checkContent(t, r, big)
	mustVerify(t, r)
	entries, err := List(ctx, repo, time.Now())
	if err != nil || len(entries) != 1 || entries[0].State != Complete {
		t.Errorf("list: %+v, %v", entries, err)
	}
	if err := Remove(ctx, repo, "b"); err != nil {
		t.Error(err)
	}
	if _, err := Open(ctx, repo, "b", ReadOptions{}); err == nil || !strings.Contains(err.Error(), "open backup "+s.String()+"/b: ") {
		t.Errorf("a backup that was removed: %v", err)
	}
	for o := range s.List(ctx, "", true) {
		t.Errorf("%s is left", o.Name)
	}
}
