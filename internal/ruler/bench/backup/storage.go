package backupbench

import (
	"context"
	"path/filepath"
	"strconv"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure"
)

// The places that --storage compares.
const (
	storageDir = "dir"
	storageS3  = "s3"
)

// storages lists them.
func storages() []string { return []string{storageDir, storageS3} }

// bucket is a bucket of an S3 server on this machine, whose objects are files below a
// directory, so that they can be counted and flushed like those of an archive in a directory.
type bucket struct {
	server *lab.S3
	name   string
	root   string // directory of its objects
	env    []string
}

// startBucket starts a private S3 server.
func startBucket(ctx context.Context) (*bucket, error) {
	s, err := lab.StartS3(ctx, lab.BrokerConfig{})
	if err != nil {
		return nil, err
	}
	return &bucket{
		server: s, name: s.Bucket(), root: filepath.Join(s.DataDir(), s.Bucket()),
		env: append(s.Environ(), "AWS_ENDPOINT_URL_S3="+s.Endpoint()),
	}, nil
}

// weirWay is weir with its archive in the bucket. The address and the account are in the
// environment, so that they are not in arguments and the arguments of a resumed run are the
// same.
func (b *bucket) weirWay(binary, name string, backup, restore []string) way {
	w := weirAt(binary, name, backup, restore, b.env, func(dir string) string { return "s3://" + b.name + "/" + filepath.Base(dir) })
	w.root = b.root
	return w
}

// storageWays are weir with its archives in the places that the plan compares. Without a
// program for the S3 server there are none, and the outcome says so.
func (r *rig) storageWays(ctx context.Context) ([]way, error) {
	flags := []string{"--jobs=" + strconv.Itoa(r.jobs)}
	var out []way
	for _, s := range r.o.Plan.Storage {
		name, backup := "weir, "+s, append([]string{"--compress=zstd:1"}, flags...)
		if s == storageDir {
			out = append(out, weirWay(r.o.Binary, name, backup, flags))
			continue
		}
		if r.bucket == nil {
			b, err := startBucket(ctx)
			if lab.NotInstalled(err) {
				r.Leave("S3: %v", err)
				return nil, nil
			} else if err != nil {
				return nil, err
			}
			r.bucket = b
		}
		out = append(out, r.bucket.weirWay(r.o.Binary, name, backup, flags))
	}
	return out, nil
}

// compareStorage is a step that compares places of archives.
func (r *rig) compareStorage(size Size, kind string) func(context.Context) error {
	return r.whole(size, func(ctx context.Context, src *source) error {
		ways, err := r.storageWays(ctx)
		if err != nil || len(ways) == 0 {
			return err
		}
		env := r.env
		defer func() { r.env = env }()
		if r.bucket != nil {
			r.env.Servers = append(r.env.Servers[:len(r.env.Servers):len(r.env.Servers)], measure.Server{
				Name: "versitygw", Version: r.bucket.server.Version(), Settings: map[string]string{"bucket": "a directory of this machine"},
			})
		}
		return r.sideBySide(ctx, src, "storage-", kind, ways)
	})
}
