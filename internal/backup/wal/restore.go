package wal

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
)

// DirOptions say how a base backup becomes a data directory.
type DirOptions struct {
	// Dir must be empty or not exist. Required.
	Dir string
	// UID and GID own everything. Default: -1, the user that restores.
	UID, GID int
	// Tablespaces map locations of the source to others. Default: where they were.
	Tablespaces map[string]string
	// RestoreCommand is the server's restore_command. Default: none, and then the
	// server replays what log the backup itself holds.
	RestoreCommand string
	// Target is where the replay ends. It needs a RestoreCommand.
	Target Target
	// Progress counts what is done. Default: nil, nobody looks.
	Progress *bulk.Progress
}

// controlFile is what a server looks at first. It gets its name last, so that a
// data directory that is not whole cannot be started.
const (
	controlFile     = "global/pg_control"
	controlWithheld = "global/pg_control.weir-incomplete"
)

// RestoreDir writes the data directory of a base backup, ready to be started. When
// it fails, what it wrote stays, and no server starts on it.
func RestoreDir(ctx context.Context, r *archive.Reader, opts DirOptions) error {
	b, err := readBase(r.Manifest())
	if err != nil {
		return err
	}
	switch {
	case opts.RestoreCommand == "" && opts.Target.set() > 0:
		return errors.New("a target needs log to be replayed, and there is none in the archive")
	case opts.RestoreCommand == "" && !b.withLog:
		return fmt.Errorf("backup %s holds no log, and there is none in the archive: it cannot be started", r.Manifest().ID)
	}
	if err := opts.Target.Validate(); err != nil {
		return err
	}
	if why, err := opts.Target.before(r.Manifest().Summary); err != nil || why != "" {
		return errors.Join(err, fmt.Errorf("the target cannot be reached: %s", why))
	}
	d := &dirRestore{DirOptions: opts, r: r, locations: map[string]string{}}
	for oid, source := range b.tablespaces {
		d.locations[oid] = source
		if to, ok := opts.Tablespaces[source]; ok {
			d.locations[oid] = to
		}
	}
	for source := range opts.Tablespaces {
		if !slices.Contains(slices.Collect(maps.Values(b.tablespaces)), source) {
			return fmt.Errorf("the backup has no tablespace in %s", source)
		}
	}
	if err := d.run(ctx); err != nil {
		return fmt.Errorf("restore %s into %s: %w", r.Manifest().ID, opts.Dir, err)
	}
	return nil
}

// dirRestore is one RestoreDir.
type dirRestore struct {
	DirOptions
	r         *archive.Reader
	locations map[string]string // of tablespaces, by OID
}

func (d *dirRestore) run(ctx context.Context) error {
	d.Progress.Phase("files")
	archives := map[string][]archive.Chunk{}
	for _, c := range d.r.Manifest().Chunks {
		if c.Kind == KindBase && c.Path != manifestPath {
			name := path.Base(path.Dir(c.Path))
			archives[name] = append(archives[name], c)
			d.Progress.Expect(c.PlainBytes, 1)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(archives)) {
		// Names of four digits are in order; there may be more pieces than those.
		slices.SortFunc(archives[name], func(a, b archive.Chunk) int { return a.Part - b.Part })
		dir := d.Dir
		if oid := strings.TrimSuffix(name, ".tar"); oid != "base" {
			location, ok := d.locations[oid]
			if !ok {
				return fmt.Errorf("the manifest says nothing of tablespace %s", oid)
			}
			dir = location
		}
		if err := d.unpack(ctx, name, dir, archives[name]); err != nil {
			return fmt.Errorf("unpack %s: %w", name, err)
		}
	}
	return d.finish(ctx)
}

// unpack writes the files of one tablespace.
func (d *dirRestore) unpack(ctx context.Context, name, dir string, chunks []archive.Chunk) (err error) {
	rt, err := d.emptyDir(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rt.Close()) }()
	disk, err := openDisk(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, disk.Close()) }()
	in := &chunkChain{ctx: ctx, d: d, chunks: chunks}
	defer func() { err = errors.Join(err, in.close()) }()
	t := tar.NewReader(in)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := d.entry(rt, h, t); err != nil {
			return err
		}
	}
	// Bytes behind the end of the tar file belong to the chunks, too, whose sums are compared at
	// their ends.
	if _, err := io.Copy(io.Discard, in); err != nil {
		return err
	}
	return disk.sync()
}

// emptyDir opens a directory that is empty, and makes it if need be.
func (d *dirRestore) emptyDir(dir string) (*os.Root, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	if len(entries) > 0 {
		return nil, fmt.Errorf("directory %s is not empty: move what is in it away, or name another one (a tablespace's by --tablespace-mapping)", dir)
	}
	rt, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return rt, errors.Join(rt.Chmod(".", 0o700), d.own(rt, "."))
}

func (d *dirRestore) own(rt *os.Root, name string) error {
	if d.UID < 0 && d.GID < 0 {
		return nil
	}
	return rt.Lchown(name, d.UID, d.GID)
}

// entry writes one file or directory. An os.Root keeps names within the directory.
func (d *dirRestore) entry(rt *os.Root, h *tar.Header, content io.Reader) error {
	name := path.Clean(h.Name)
	if name == "." {
		return nil
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := rt.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return d.own(rt, name)
	case tar.TypeReg:
	default:
		return fmt.Errorf("%s: neither a file nor a directory", h.Name)
	}
	switch name {
	case controlFile:
		name = controlWithheld
	case "tablespace_map":
		text, err := io.ReadAll(io.LimitReader(content, 1<<20))
		if err != nil {
			return err
		}
		content = strings.NewReader(d.tablespaceMap(string(text)))
	case "recovery.signal", "standby.signal", "postmaster.pid":
		return nil // those of the source
	}
	return d.write(rt, name, content)
}

func (d *dirRestore) write(rt *os.Root, name string, content io.Reader) (err error) {
	f, err := rt.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.Copy(f, content); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return d.own(rt, name)
}

// tablespaceMap writes the file anew by which the server makes its links: a line
// "OID location" for each.
func (d *dirRestore) tablespaceMap(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		oid, _, _ := strings.Cut(line, " ")
		if location, ok := d.locations[oid]; ok {
			// The server escapes what would end the line.
			escaped := strings.NewReplacer(`\`, `\\`, "\n", "\\\n", "\r", "\\\r").Replace(location)
			line = oid + " " + escaped + "\n"
		}
		b.WriteString(line)
	}
	return b.String()
}

// finish writes the settings, and then the name that makes the directory one that
// can be started.
func (d *dirRestore) finish(ctx context.Context) (err error) {
	d.Progress.Phase("settings")
	rt, err := os.OpenRoot(d.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rt.Close()) }()
	disk, err := openDisk(d.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, disk.Close()) }()
	if err := d.serverManifest(ctx, rt); err != nil {
		return err
	}
	if d.RestoreCommand != "" {
		if err := d.settings(rt); err != nil {
			return err
		}
		if err := d.write(rt, "recovery.signal", strings.NewReader("")); err != nil {
			return err
		}
	}
	if err := disk.sync(); err != nil {
		return err
	}
	if err := rt.Rename(controlWithheld, controlFile); err != nil {
		return fmt.Errorf("the backup holds no %s: %w", controlFile, err)
	}
	return disk.sync()
}

// serverManifest writes backup_manifest, which servers before 13 do not have.
func (d *dirRestore) serverManifest(ctx context.Context, rt *os.Root) error {
	in, err := d.r.Chunk(ctx, manifestPath)
	if errors.Is(err, archive.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(d.write(rt, "backup_manifest", in), in.Close())
}

// settings adds the settings of recovery to those of ALTER SYSTEM, the last of
// which wins.
func (d *dirRestore) settings(rt *os.Root) (err error) {
	const name = "postgresql.auto.conf"
	f, err := rt.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	text := "\n# Written by weir restore, for the recovery only.\n"
	for _, s := range d.Target.settings(d.RestoreCommand) {
		text += s[0] + " = '" + strings.NewReplacer("'", "''", `\`, `\\`).Replace(s[1]) + "'\n"
	}
	if _, err := f.WriteString(text); err != nil {
		return err
	}
	return d.own(rt, name)
}

// disk is the file system of a directory.
type disk struct{ *os.File }

// openDisk opens it before anything is written there: Linux tells of writes that have
// failed since.
func openDisk(dir string) (disk, error) {
	f, err := os.Open(filepath.Clean(dir))
	return disk{f}, err
}

// sync makes durable what is in it.
func (d disk) sync() error {
	if err := syncFileSystem(d.File); err != nil {
		return fmt.Errorf("flush %s: %w", d.Name(), err)
	}
	return nil
}

// chunkChain reads chunks one after the other, each verified.
type chunkChain struct {
	ctx    context.Context
	d      *dirRestore
	chunks []archive.Chunk
	in     io.ReadCloser
	done   func()
}

// Read reads on.
func (c *chunkChain) Read(p []byte) (int, error) {
	for {
		if c.in == nil {
			if len(c.chunks) == 0 {
				return 0, io.EOF
			}
			var err error
			if c.in, err = c.d.r.Chunk(c.ctx, c.chunks[0].Path); err != nil {
				return 0, err
			}
			c.done = c.d.Progress.Begin(c.chunks[0].Path)
			c.chunks = c.chunks[1:]
		}
		n, err := c.in.Read(p)
		c.d.Progress.Add(int64(n), 0)
		if errors.Is(err, io.EOF) {
			err = c.close()
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func (c *chunkChain) close() error {
	if c.in == nil {
		return nil
	}
	in := c.in
	c.in = nil
	c.done()
	return in.Close()
}
