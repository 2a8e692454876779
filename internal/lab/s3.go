package lab

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// EnvS3 names the versitygw program, the lab's S3 server.
const EnvS3 = "WEIR_VERSITYGW"

// s3Program is Versity's gateway, which stores buckets as directories and objects as files. It
// is a separate process, not a fake in this one: it can be killed, and it checks signatures and
// checksums as S3 does.
func s3Program() brokerProgram {
	return brokerProgram{
		title: "the S3 server versitygw", env: EnvS3, name: "versitygw", dirs: checkout("bin/tools"),
		hint: "make setup (in a checkout of weir)",
	}
}

// FindS3 returns the path and version of versitygw: the first of given (if not empty),
// $WEIR_VERSITYGW, bin/tools in a checkout of weir, the PATH. The error is a *NotInstalledError
// if there is none.
func FindS3(_ context.Context, given string) (path, version string, err error) {
	if path, err = s3Program().find(given); err != nil {
		return "", "", err
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return "", "", fmt.Errorf("read version of versitygw: %w", err)
	}
	return path, strings.TrimPrefix(info.Main.Version, "v"), nil
}

// S3 is a running S3 server that belongs to this process, with one empty bucket.
// Its methods are safe for concurrent use.
type S3 struct {
	broker
	binary string
}

const (
	s3AccessKey = "weir"
	s3Region    = "us-east-1"
	s3Bucket    = "weir"
)

// StartS3 starts a server and returns when it answers, in about 0.2 s. What it has stored
// survives its own crash; it flushes nothing, whatever the durability. Cancelling ctx aborts
// the start; it does not stop a running server: call Stop.
func StartS3(ctx context.Context, cfg BrokerConfig) (*S3, error) {
	err := cfg.validate()
	if err == nil && len(cfg.Settings) > 0 {
		err = errors.New("settings: the S3 server has none")
	}
	if err != nil {
		return nil, fmt.Errorf("configure the S3 server: %w", err)
	}
	binary, version, err := FindS3(ctx, cfg.Program)
	if err != nil {
		return nil, err
	}
	if cfg.Password == "" {
		cfg.Password = brokerUser
	}
	s := &S3{binary: binary}
	s.version = version
	if err := s.open(ctx, "the S3 server", "nobody", cfg, s.prepare, s.start); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *S3) prepare(context.Context) (err error) {
	if s.binary, err = s.within(s.binary); err != nil {
		return err
	}
	bucket := filepath.Join(s.data, s3Bucket)
	if err := os.Mkdir(bucket, 0o755); err != nil {
		return fmt.Errorf("create bucket: %w", err)
	}
	if err := s.as.chown(bucket); err != nil {
		return fmt.Errorf("hand over bucket: %w", err)
	}
	return nil
}

func (s *S3) start(ctx context.Context) error {
	if err := s.choosePorts(0); err != nil {
		return err
	}
	// In the environment: everyone can read arguments.
	s.env = []string{"ROOT_ACCESS_KEY=" + s3AccessKey, "ROOT_SECRET_KEY=" + s.cfg.Password, "VGW_REGION=" + s3Region, "VGW_QUIET=true"}
	return s.serve(ctx, s.binary, []string{"--port", s.Addr(), "posix", s.data}, probeS3)
}

// probeS3 sends a request without a signature, and expects it to be refused.
func probeS3(ctx context.Context, addr string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/", nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	if answer.StatusCode >= http.StatusInternalServerError {
		err = fmt.Errorf("not ready: %s", answer.Status)
	}
	return errors.Join(err, answer.Body.Close())
}

// Endpoint is the server's base URL for S3 clients, with buckets in the path.
func (s *S3) Endpoint() string { return "http://" + s.Addr() }

// Bucket is the name of the bucket that the server starts with.
func (s *S3) Bucket() string { return s3Bucket }

// Environ is the account and region, as environment variables for S3 clients. It contains the
// secret key: do not log it.
func (s *S3) Environ() []string {
	return []string{
		"AWS_ACCESS_KEY_ID=" + s3AccessKey,
		"AWS_SECRET_ACCESS_KEY=" + s.cfg.Password,
		"AWS_REGION=" + s3Region,
	}
}

// URL is the URL of the bucket, without the account, which is in Environ.
func (s *S3) URL() string {
	q := url.Values{"endpoint": {s.Endpoint()}, "region": {s3Region}}
	u := url.URL{Scheme: "s3", Host: s3Bucket, RawQuery: q.Encode()}
	return u.String()
}
